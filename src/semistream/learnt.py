"""What a front stage has learnt, as bytes: the codes it caches and how often each was asked for.

No rows: whoever learns from it reads them from the master, at the version that it has. So it may be
old, or of another master altogether, and costs nothing but time. An Arrow stream; no pickle.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import Chunks
from .engine import Engine
from .errors import SpecError
from .front import MOST_GROUP
from .master.finding import find_rows

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
SCHEMA = pa.schema([("code", pa.int64()), ("uses", pa.int32())])
WIDEST = 16  # pages of a group that is still read


def save_learnt(engine: Engine | None, most: int | None) -> bytes:
    """The cached codes, most asked for first."""
    found = None if engine is None else engine.front.hot()
    if found is None or len(found.codes) == 0:
        return b""
    found = found.part(slice(most))
    uses = np.minimum(found.uses, np.iinfo(np.int32).max).astype(np.int32)
    batch = pa.record_batch([pa.array(found.codes), pa.array(uses)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def load_learnt(data: bytes) -> tuple[I64, I32]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            table = reader.read_all().cast(SCHEMA)
            table.validate(full=True)
        codes, uses = (np.array(column) for column in table.columns)
        if table.num_rows and (table["code"].null_count or uses.min() < 0):
            raise ValueError("a code is missing, or was used less than never")
    except (pa.ArrowException, ValueError, OSError) as error:
        raise SpecError(
            f"these {len(data)} bytes are not what a join has learnt ({error}); pass on what "
            "learnt() gave, or leave it out"
        ) from error
    return codes, uses


def learn(engine: Engine, codes: I64, uses: I32) -> None:
    """Fill the front stage with the rows of these codes, most asked for first, as far as they fit,
    and where pages must be read, about as many bytes of them as the budget. Masters that cannot be
    asked for codes are left alone: their front stage learns by itself."""
    master, front = engine.question.master, engine.front
    able = master.describe().indexed and master.ranges and master.block_pages is None
    if not able or master.by_key or master.ages or not front.learns:
        return
    limit = np.inf if master.mapped else master.traffic.bytes + engine.question.budget
    codes, first = np.unique(codes, return_index=True)
    uses = np.maximum(uses[first], engine.question.params.threshold)
    order = np.argsort(-uses, kind="stable")
    for some in _portions(engine, order):
        if front.spare or front.full or master.traffic.bytes > limit:
            return
        some = np.sort(some)  # codes in order
        _bring(engine, codes[some], uses[some])


def _portions(engine: Engine, order: I64) -> Iterator[I64]:
    """As many at a time as fit where rows would wait: nobody waits now."""
    info = engine.question.master.describe()
    width = max(64, info.bytes // max(1, info.rows))
    many = max(16, engine.split.backlog // (4 * width))
    for at in range(0, len(order), many):
        yield order[at : at + many]


def _bring(engine: Engine, codes: I64, uses: I32) -> None:
    master, names = engine.question.master, engine.output.shape.master
    low, high = master.seek(codes)
    narrow = high - low <= WIDEST  # a group may have grown since: then it is not for the cache
    codes, uses = codes[narrow], uses[narrow]
    owners, rows = find_rows(master, codes, names)
    order = np.argsort(owners, kind="stable")
    engine.ledger.set("read", rows.nbytes + 32 * len(codes))
    start = np.searchsorted(owners, codes, "left", sorter=order)
    count = np.searchsorted(owners, codes, "right", sorter=order) - start
    heads = np.append(order, -1)[start]  # a group's rows are together, whatever their order
    heads[count == 0] = -1
    small = count <= MOST_GROUP
    engine.front.offer(
        codes[small], uses[small], heads[small], count[small].astype(np.int32), Chunks.of(rows)
    )
    engine.ledger.set("read", 0)
