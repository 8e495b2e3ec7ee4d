"""What a store of several runs reads: little more than the pages that hold the keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.kernels import claims

ROWS = 40_000


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reads") / "s"
    rng = np.random.default_rng(1)

    def table(keys: np.ndarray, what: str) -> pa.Table:
        return pa.table({"id": keys, "v": [f"{what} {k} ".ljust(100, ".") for k in keys]})

    store = ss.Store.create(path, table(np.arange(ROWS), "base"), "id", page_bytes=8192)
    for number in range(3):  # each a quarter of the one before, so that none is merged
        keys = np.sort(rng.choice(ROWS, ROWS // (10 * 4**number), replace=False))
        store = store.upsert(table(keys, f"change {number}"))
    assert len(store.manifest.runs) == 4
    return path


def asked_for() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes in /proc")
@pytest.mark.parametrize("keys", [1, 20, 300, 5_000])
def test_bytes_read_for_scattered_keys(keys, path) -> None:
    """Counted by the store, and by the system."""
    store = ss.Store.open(path, io="pread")
    wanted = np.unique(np.random.default_rng(keys).integers(0, ROWS, keys))
    low, high = store.seek(wanted)
    assert (high - low <= 2).all()
    pages = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]))
    touched = int(store.page_bytes(pages).sum())
    list(
        ss.join_batches(
            [pa.record_batch({"id": wanted})],
            ss.Store.open(path, io="pread"),
            "id",
            algorithm="sweepjoin",
        )
    )
    join = ss.SemiStreamJoin(store, "id", algorithm="sweepjoin", memory="64MB")
    before = asked_for()  # after a first join, for which kernels were loaded
    out = [*join.push(pa.record_batch({"id": wanted})), *join.drain()]
    asked = asked_for() - before
    assert sum(len(batch) for batch in out) == len(wanted)
    assert touched <= store.traffic.bytes <= 1.5 * touched
    assert store.traffic.bytes <= asked <= 1.5 * touched + 20_000, "what /proc itself reads counts"
    store.close()


@pytest.mark.parametrize("step", [1, 3, 64, 1000, 4096, 10**6, 10**9, 2**20, 2**32, 2**40])
def test_the_filter_of_claims_knows_all_bits_of_a_code(step) -> None:
    """Keys with zeros at their end, as times have, pass it no more often than others."""
    rng = np.random.default_rng(1)
    every = np.arange(50_000, dtype=np.int64) * step
    some = np.sort(rng.choice(every, 10_000, replace=False))
    bits = int(len(some) // 4).bit_length()
    words = np.zeros(1 << bits, np.uint64)
    claims.add_to_filter(some.ctypes.data, len(some), words, bits)
    passed = 0
    for code in np.setdiff1d(every, some)[::20]:
        mixed = np.uint64(claims._mixed(code))
        wanted = np.uint64(claims._bits_of(mixed))
        passed += int(words[mixed >> np.uint64(64 - bits)] & wanted == wanted)
    assert passed < 0.1 * 2_000
