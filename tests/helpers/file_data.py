"""Files as others write them, and what is checked of a master made of them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from semistream.master import Master, from_locator
from semistream.rows.keys import codes_of
from semistream.testing import check_join, check_master

NULL = "__HIVE_DEFAULT_PARTITION__"


def put(table: pa.Table, path: Path, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def check_files(path: Path, table: pa.Table, key: str = "id", version: int | None = None) -> Master:
    """The contract of masters, a join of each kind, and the same in another process."""
    master = ss.open_master(path, key, version=version)
    info = check_master(master, table, key)
    rng = random.Random(1)
    keys = [*table[key].to_pylist(), None]
    some = pa.array([rng.choice(keys) for _ in range(60)], info.schema.field(key).type)
    stream = pa.table({"k": some, "row": range(60)})
    for algorithm in ("meshjoin", "sweepjoin" if info.indexed else "cmeshjoin"):
        check_join(master, stream, on={"k": key}, how="left", algorithm=algorithm, table=table)
    assert from_locator(master.locator()).describe() == info
    return master


def codes(values) -> list[int]:
    return sorted(codes_of([pa.array(values, pa.int64())]).tolist())
