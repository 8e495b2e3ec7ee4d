"""TPC-H: customers as the master, orders as the stream, made by `tpchgen-cli`.

TPC-H draws every order's customer uniformly, but a third of the customers, whose number divides by
three, has no orders: what falls on them goes to the next number. So, measured, customers 1, 4, 7...
have 20 orders on average, 2, 5, 8... have 10, and nothing is more skewed than that. No cache can
help much there, and the papers report that it did; so orders also come with the customer redrawn
from a Zipf law over all customers. That is no longer TPC-H, and the stream's name says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lib import workload
from experiments.data.kept_stores import PAGE_BYTES, kept_table
from experiments.data.trace import recut

KEY = "c_custkey"
NARROW = ("o_orderkey", "o_custkey", "o_orderdate")
"""What a load of surrogate keys would carry: 20 bytes, as the papers' synthetic rows."""

_READ_ROWS = 65_536


def customers(folder: Path, scale: float, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of all columns of Customer, on c_custkey."""
    path = folder / f"tpch{scale:g}-customers-page{page_bytes}"

    def rows() -> pa.RecordBatchReader:
        file = pq.ParquetFile(generated(folder, scale) / "customer.parquet")
        schema = _plain(file.schema_arrow)
        batches = (batch.cast(schema) for batch in file.iter_batches(_READ_ROWS))
        return pa.RecordBatchReader.from_batches(schema, batches)

    return kept_table(path, rows, KEY, page_bytes)


def generated(folder: Path, scale: float) -> Path:
    """The folder with customer.parquet and orders.parquet of a scale factor, made if needed."""
    made = folder / f"tpch{scale:g}-parquet"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tpch-", dir=folder) as scratch:
        target = Path(scratch) / "made"
        words = ["parquet", f"--scale-factor={scale}", "--tables=customer,orders"]
        subprocess.run([_generator(), *words, "--quiet", f"--output-dir={target}"], check=True)
        target.rename(made)  # it appears whole or not at all
    return made


@dataclass(frozen=True)
class Orders:
    """The orders as they were generated, or with the customer redrawn where `skew` is given.

    `folder` is what `generated` returns. `o_custkey` is called `c_custkey`, as in the master.
    `columns=None` takes all of them. `places` says which customers are the popular ones.
    """

    folder: Path
    skew: float | None = None
    columns: tuple[str, ...] | None = NARROW
    places: int = 0

    key = KEY

    def __post_init__(self) -> None:
        if self.columns is not None and "o_custkey" not in self.columns:
            raise ValueError(f"columns={self.columns}: o_custkey is the key, the stream needs it")

    @property
    def name(self) -> str:
        if self.skew is None:
            return "TPC-H orders"
        return f"TPC-H orders, o_custkey redrawn: Zipf {self.skew:g}"

    @cached_property
    def schema(self) -> pa.Schema:
        read = pq.read_schema(self._file)
        columns = read.names if self.columns is None else self.columns
        fields = [_plain(read).field(name) for name in columns]
        return pa.schema([f.with_name(KEY) if f.name == "o_custkey" else f for f in fields])

    @cached_property
    def customers(self) -> int:
        return int(pq.read_metadata(self.folder / "customer.parquet").num_rows)

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        """In the order of o_orderkey. `seed` matters only where customers are redrawn."""
        cut = recut(self._again_and_again(), rows)
        return cut if self.skew is None else self._redrawn(cut, seed, self.skew)

    @property
    def _file(self) -> Path:
        return self.folder / "orders.parquet"

    def _again_and_again(self) -> Iterator[pa.RecordBatch]:
        columns = None if self.columns is None else list(self.columns)
        while True:
            for batch in pq.ParquetFile(self._file).iter_batches(_READ_ROWS, columns=columns):
                named = batch.rename_columns([_named(name) for name in batch.schema.names])
                yield named.select(self.schema.names).cast(self.schema)

    def _redrawn(
        self, batches: Iterator[pa.RecordBatch], seed: int, skew: float
    ) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(seed)
        at, field = self.schema.get_field_index(KEY), self.schema.field(KEY)
        for batch in batches:
            ranks = workload.zipf_ranks(rng, batch.num_rows, self.customers, skew)
            keys = workload.rank_to_key(ranks, self.customers, self.places) + 1  # they begin at 1
            yield batch.set_column(at, field, pa.array(keys))


def _named(column: str) -> str:
    return KEY if column == "o_custkey" else column


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without the generator's field numbers, and with ordinary strings instead of views."""
    fields = [
        pa.field(f.name, pa.string() if f.type == pa.string_view() else f.type, f.nullable)
        for f in schema
    ]
    return pa.schema(fields)


def _generator() -> str:
    """The program, from this environment rather than from wherever PATH leads."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise FileNotFoundError(
            "tpchgen-cli is not installed; it comes with: pip install 'semistream[experiments]'"
        )
    return found
