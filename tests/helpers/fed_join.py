"""A join that is fed a Zipf-distributed stream, for tests that count what it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import semistream as ss
from tests.helpers import model_simulator as simulator

ROWS = 200_000  # of the master
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.binary(40)})  # of the stream


def make_store(path: Path) -> Path:
    numbers = pa.array(np.arange(ROWS))
    table = pa.table({name: numbers for name in ("id", "a", "b", "c", "d")})
    ss.Store.create(path, table, "id", page_bytes=16 << 10).close()
    return path


class FedJoin:
    """Stream rows of 48 bytes; `io` "map" or "pread"; `ordered`: the first keys are the popular
    ones, else any."""

    def __init__(
        self,
        store: Path,
        name: str,
        params: ss.Params,
        skew: float,
        ordered: bool,
        io: str,
        batch: int = 20_000,
    ) -> None:
        self.master = ss.Store.open(store, io=io)
        self.join = ss.SemiStreamJoin(
            self.master, on="id", memory=5 << 19, algorithm=name, params=params,
            stream_schema=SCHEMA,
        )  # fmt: skip
        self.skew, self.ordered, self.batch = skew, ordered, batch
        self._draws = simulator.Draws(ROWS, skew, seed=1)
        self._key = np.arange(ROWS) if ordered else self._draws.random.permutation(ROWS)

    def feed(self, rows: int) -> None:
        for begin in range(0, rows, self.batch):
            count = min(self.batch, rows - begin)
            keys = pa.array(self._key[self._draws.take(count)])
            text = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(40), count, [None, pa.py_buffer(bytes(40 * count))]
            )
            for _ in self.join.push(pa.record_batch([keys, text], schema=SCHEMA)):
                pass

    def close(self) -> None:
        self.join.close()
        self.master.close()
