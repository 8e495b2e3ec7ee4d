"""Where the pages of a store's version lie, and which run owns a code.

Pages are numbered run by run, the base first; pages of NULL keys, of any run, come after all
others. With one run everything here is mapped; with several the indexes are joined in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...kernels import claims as k
from ...kernels.arrays import I32, I64, U64, Mask
from ...safety import UNREADABLE, checksum
from ..storage import DATA, Place
from . import format as fmt
from .bounds import PageCheck, check_claims, check_table, unsound

CODES_PER_WORD = 4  # of the filter: some 1.5 % of codes that nobody claims pass it


@dataclass
class Claims:
    """The codes that changes have the last word on, run by run."""

    tables: list[pa.Table]  # keeps what the addresses point at
    address: I64
    rows: I64
    count: I64
    words: U64
    bits: int

    def owners(self, codes: I64) -> I32:
        """For each code the run that has all its rows: 0 is the base, -1: none has any."""
        owner = np.empty(len(codes), np.int32)
        where = (self.words, self.bits, self.address, self.rows, self.count)
        k.find_owners(np.ascontiguousarray(codes), *where, owner)
        return owner

    def stale(self, codes: I64, rows: I64, run: I32) -> Mask | None:
        """Which rows of some pages (addresses of their codes, rows, run) newer runs replaced."""
        mask = np.zeros(int(rows.sum()), np.bool_)
        claimed = (self.address, self.rows, self.count)
        found = k.is_stale(codes, rows, run, self.words, self.bits, *claimed, mask)
        return mask if found else None

    def codes(self, run: int) -> I64:
        """All codes that a run claims, sorted."""
        return _numpy(self.tables[run - 1]["code"])


@dataclass(frozen=True)
class RunIndex:
    """The index of one run, checked, and its claims if it is a change. Several versions of a store
    that are open share it."""

    run: fmt.Run
    tables: list[pa.Table]  # keeps what the arrays point at: the index, and the claims
    column: dict[str, I64]
    buffers: I64


class StoreIndex:
    """Arrays over the pages of a version, as `fmt.INDEX_FIELDS` has them; see there. What `older`
    has of the same runs is not loaded again."""

    def __init__(
        self,
        place: Place,
        manifest: fmt.Manifest,
        width: int,
        check: PageCheck,
        older: StoreIndex | None = None,
    ) -> None:
        runs = manifest.runs
        known = {} if older is None else {one.run.id: one for one in older.loaded}
        self.loaded: list[RunIndex] = [
            one
            if (one := known.get(run.id)) and one.run == run
            else _load_run(place, run, width, check)
            for run in runs
        ]
        keyed = [run.pages - run.null_pages for run in runs]
        self.runs: I64 = np.concatenate([[0], np.cumsum(keyed)]).astype(np.int64)
        self.keyed = int(self.runs[-1])
        column = {
            name: _joined([one.column[name] for one in self.loaded], keyed)
            for name in fmt.INDEX_FIELDS
        }
        self.first, self.last, self.rows = column["first"], column["last"], column["rows"]
        self.offset, self.length, self.crc = column["offset"], column["length"], column["crc"]
        self.shard = column["shard"]
        self.buffers = _joined([one.buffers for one in self.loaded], keyed)
        self.allocated = 0
        self.claims: Claims | None = None
        if len(runs) > 1:
            self._number_shards(runs)
            self.claims = _claims([one.tables[1] for one in self.loaded[1:]])
            arrays = (*column.values(), self.buffers, self.claims.words, self.runs)
            self.allocated = sum(a.nbytes for a in arrays)
        if place.remote:
            self.allocated += sum(run.index_bytes + run.claims_bytes for run in runs)

    def _number_shards(self, runs: list[fmt.Run]) -> None:
        """Shards of all runs, one after another."""
        before = np.cumsum([0, *(len(run.shards) for run in runs[:-1])])
        nulls = [run.null_pages for run in runs]
        self.shard = self.shard + np.concatenate(
            [np.repeat(before, np.diff(self.runs)), np.repeat(before, nulls)]
        )

    def run_of(self, pages: I64) -> I32:
        """The run of each page; -1 for pages of NULL keys."""
        run = np.searchsorted(self.runs, pages, "right") - 1
        return np.where(pages < self.keyed, run, -1).astype(np.int32)


def _joined(parts: list[I64], keyed: list[int]) -> I64:
    """What is known of pages, run by run, those of NULL keys last."""
    if len(parts) == 1:
        return parts[0]
    first = [part[:end] for part, end in zip(parts, keyed, strict=True)]
    nulls = [part[end:] for part, end in zip(parts, keyed, strict=True)]
    return np.concatenate([*first, *nulls])


def _load_run(place: Place, run: fmt.Run, width: int, check: PageCheck) -> RunIndex:
    name = f"{run.id}.index"
    table = _load(place, name, run.index_bytes, run.index_crc, fmt.index_schema(width), run.pages)
    column = {field: _values(table[field]) for field in fmt.INDEX_FIELDS}
    buffers = _values(table["buffers"]).reshape(-1, max(1, width))
    check.index(f"{place}/{DATA}/{name}", run, column, buffers)
    claims = [] if run.kind == "base" else [_load_claims(place, run)]
    return RunIndex(run, [table, *claims], column, buffers)


def _load_claims(place: Place, run: fmt.Run) -> pa.Table:
    name = f"{run.id}.claims"
    table = _load(place, name, run.claims_bytes, run.claims_crc, fmt.CLAIMS, run.claims)
    return check_claims(f"{place}/{DATA}/{name}", table)


def _claims(tables: list[pa.Table]) -> Claims:
    address = np.array([_address(table["code"]) for table in tables], np.int64)
    rows = np.array([_address(table["rows"]) for table in tables], np.int64)
    count = np.array([table.num_rows for table in tables], np.int64)
    bits = max(3, int(count.sum() // CODES_PER_WORD).bit_length())
    words = np.zeros(1 << bits, np.uint64)
    for at, n in zip(address, count, strict=True):
        k.add_to_filter(at, n, words, bits)
    return Claims(tables, address, rows, count, words, bits)


def claimed(place: Place, run: fmt.Run) -> I64:
    """All codes that a run claims, sorted."""
    if not run.claims:
        return np.zeros(0, np.int64)
    return _numpy(_load_claims(place, run)["code"])


def _load(place: Place, name: str, size: int, crc: int, schema: pa.Schema, rows: int) -> pa.Table:
    where, content = f"{place}/{DATA}/{name}", place.load(f"{DATA}/{name}", size)
    if checksum(content) != crc:
        raise unsound(where, "its checksum is wrong")
    try:
        return check_table(where, pa.ipc.open_file(content).read_all(), schema, rows)
    except UNREADABLE as error:
        raise unsound(where, str(error)) from error


def _address(column: pa.ChunkedArray) -> int:
    return int(column.chunk(0).buffers()[1].address) if len(column) else 0


def _values(column: pa.ChunkedArray) -> I64:
    """The numbers of a column, those within lists too, as they lie."""
    nested = pa.types.is_fixed_size_list(column.type)
    array = one_chunk(column)
    return _numpy(array.values if nested else array)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numpy(column: pa.Array | pa.ChunkedArray) -> I64:
    array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)
