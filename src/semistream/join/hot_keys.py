"""What a front stage has learnt, as bytes: the codes it caches and how often each was asked for.

No rows: whoever learns from it reads them from the master, at the version that it has. So it may be
old, or of another master altogether, and costs nothing but time. A sealed Arrow stream; no pickle.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..errors import SpecError
from ..front import MOST_GROUP, Groups
from ..kernels.arrays import I32, I64
from ..master import find_rows
from ..rows.chunks import Chunks
from ..safety import SealError, seal, unseal
from .engine import Engine

SCHEMA = pa.schema([("code", pa.int64()), ("uses", pa.int32())])
WIDEST = 4  # pages of a group that is still read
FEW = 16  # codes that are looked up at first
ROOM = 8  # one part in so many of what waiting rows may take, for the rows of one portion


def save_hot_keys(engine: Engine | None, most: int | None) -> bytes:
    """The cached codes, most asked for first."""
    found = None if engine is None else engine.front.hot(most)
    if found is None or len(found[0]) == 0:
        return b""
    codes, uses = found
    uses = np.minimum(uses, np.iinfo(np.int32).max).astype(np.int32)
    batch = pa.record_batch([pa.array(codes), pa.array(uses)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    return seal("learnt", sink.getvalue().to_pybytes())


def load_hot_keys(data: bytes) -> tuple[I64, I32]:
    try:
        with pa.ipc.open_stream(unseal("learnt", data)) as reader:
            table = reader.read_all().cast(SCHEMA)
            table.validate(full=True)
        codes, uses = (np.array(column) for column in table.columns)
        missing = table["code"].null_count or table["uses"].null_count
        if table.num_rows and (missing or uses.min() < 0):
            raise ValueError("a code is missing, or was used less than never")
    except (SealError, pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise SpecError(
            f"what was given to learn() is not what a join has learnt ({error}); pass on what "
            "learnt() gave, or leave it out"
        ) from error
    return codes, uses


def learn(engine: Engine, codes: I64, uses: I32) -> None:
    """Fill the front stage with the rows of these codes, most asked for first, as far as they fit,
    and where pages must be read, about as many bytes of them as the budget. Masters that cannot be
    asked for codes are left alone: their front stage learns by itself."""
    master, front = engine.question.master, engine.front
    info = master.describe()
    able = info.indexed and master.ranges and master.block_pages is None
    if not able or master.by_key or master.ages or not front.learns:
        return
    codes, first = np.unique(codes, return_index=True)
    uses = np.maximum(uses[first], engine.question.params.threshold)
    order = np.argsort(-uses, kind="stable")
    # Rows go where stream rows would wait: nobody waits now. How many rows a code has is not known,
    # so portions begin small and grow with what they were found to bring.
    room = max(1, engine.split.backlog // ROOM)
    limit = master.traffic.bytes + engine.question.budget
    at, many = 0, FEW
    while at < len(order) and not front.spare and not front.full:
        if not master.mapped:
            left = (limit - master.traffic.bytes) // (info.max_page_bytes + 1)
            if left <= 0:
                return
            many = min(many, left)
        some = np.sort(order[at : at + many])  # codes in order
        brought = _bring(engine, codes[some], uses[some])
        at += many
        many = max(FEW, min(4 * many, many * room // max(1, brought)))


def _bring(engine: Engine, codes: I64, uses: I32) -> int:
    """Offer the rows of some codes to the front stage; returns how many bytes they had."""
    master, names = engine.question.master, engine.output.shape.master
    low, high = master.seek(codes)
    narrow = high - low <= WIDEST  # a group may have grown since: then it is not for the cache
    codes, uses = codes[narrow], uses[narrow]
    owners, rows = find_rows(master, codes, names, engine.split.read)
    order = np.argsort(owners, kind="stable")
    count_bytes = int(rows.nbytes) + 32 * len(codes)
    engine.ledger.set("read", count_bytes)
    start = np.searchsorted(owners, codes, "left", sorter=order)
    count = np.searchsorted(owners, codes, "right", sorter=order) - start
    heads = np.append(order, -1)[start]  # a group's rows are together, whatever their order
    heads[count == 0] = -1
    small = count <= MOST_GROUP
    groups = Groups(codes[small], heads[small], count[small].astype(np.int32), uses[small])
    engine.front.offer(groups, Chunks.of(rows))
    engine.front.watch_anew()
    engine.ledger.set("read", 0)
    return count_bytes
