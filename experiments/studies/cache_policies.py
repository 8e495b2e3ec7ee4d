"""Hit ratios of known caches, by the simulator `libcachesim`, which is not ours.

Every object has size 1, so a cache of n bytes has n entries. Keys go to it in a file of its own
binary format (oracleGeneral: time, id, size, next use); the next use is for policies that see the
future, and stays empty. The test compares the simulator with an LRU of ten lines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np

from semistream.kernels.arrays import I64

_REQUEST = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
# With the usual settings of each. LFU counts what is cached, and forgets what leaves.
POLICIES: dict[str, Callable[..., Any]] = {
    "LRU": libcachesim.LRU,
    "LFU": libcachesim.LFU,
    "W-TinyLFU": libcachesim.WTinyLFU,
    "S3-FIFO": libcachesim.S3FIFO,
    "SIEVE": libcachesim.Sieve,
}


def write_trace(keys: I64, path: Path) -> None:
    """The keys, from 0 on, as requests for objects of size 1."""
    requests = np.zeros(len(keys), _REQUEST)
    requests["time"], requests["id"] = np.arange(len(keys)), keys + 1
    requests["size"], requests["next"] = 1, -1
    requests.tofile(path)


def simulate(policy: str, trace: Path, entries: int, warm: int) -> float:
    """Share of the requests after the first `warm` that a cache of `entries` objects answers."""
    size = trace.stat().st_size // _REQUEST.itemsize
    reader = libcachesim.TraceReader(
        str(trace), libcachesim.TraceType.ORACLE_GENERAL_TRACE, libcachesim.ReaderInitParam()
    )
    cache = POLICIES[policy](cache_size=entries, hashpower=max(10, entries.bit_length() + 1))
    if warm:
        cache.process_trace(reader, 0, warm)
    missed, _ = cache.process_trace(reader, warm, size - warm)
    return 1.0 - float(missed)


def fixed_set(keys: I64, asked: I64) -> float:
    """Share of the requests that a cache answers which has these keys, from first to last."""
    return float(np.isin(asked, keys).mean())


def best_in_hindsight(asked: I64, entries: int) -> I64:
    """The keys that are asked for most."""
    found, counts = np.unique(asked, return_counts=True)
    return found[np.argsort(-counts, kind="stable")[:entries]]
