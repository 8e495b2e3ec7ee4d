"""A table in PostgreSQL, MySQL or MariaDB as a master.

Many keys are fetched per round trip, rows are scanned by ranges of keys (pages.py), and where
the order of the key is the order of codes these ranges are pages that can be sought. Whatever the
database takes for equal, rows are compared with the keys byte by byte before they are used.

A database changes while it is asked. Every statement sees a state of its own, so two keys of one
batch may come from two states, and no version is promised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import MasterError
from ...kernels.arrays import I64
from ...rows.chunks import Chunks
from ...rows.keys import codes_of, is_natural, key_coder, not_null
from ..base import NOTHING, Master, MasterInfo, Pages, Traffic, no_order
from ..store import design
from .address import SqlSpec, names_of
from .changes import Changes
from .columns import Column
from .dialect import Dialect, choose_columns
from .pages import KeyOrderedRows, Table, count_rows, lay_out, row_width
from .session import Query, Session, TooBigError

PAGE_BYTES = 128 << 10
LOOKUP_KEYS = 10_000
MOST_BYTES = 512 << 20  # of one result


class SqlMaster(Master):
    by_key = True

    def __init__(self, spec: SqlSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec, self.traffic = spec, Traffic()
        self.session = Session(spec.place, _dialect(spec.place.kind).driver)
        try:
            self._open(clock)
        except BaseException:
            self.session.close()
            raise

    def _open(self, clock: Callable[[], float]) -> None:
        spec, dialect = self.spec, _dialect(self.spec.place.kind)
        schema, name = names_of(spec.table)
        relation = dialect.relation(self.session, schema, name)
        if relation is None:
            raise MasterError(
                f"{spec.place.shown} has no table {'.'.join(filter(None, (schema, name)))!r}, or "
                f"{spec.place.user} may not see it; check table= (case matters)"
            )
        shown = f"{spec.place.shown} {relation.schema}.{relation.name}"
        self.columns = choose_columns(relation, spec.key, spec.columns, shown)
        fields = [pa.field(c.name, c.type, c.nullable) for c in self.columns]
        self._design = design(pa.schema(fields), spec.key)
        key = tuple(relation.column(k) for k in spec.key)
        self._table = Table(self.session, dialect, relation, key, spec.where)
        rows, keyed = count_rows(self._table)
        width = row_width(self._table, self.columns, self._design.schema)
        self._layout = layout = lay_out(self._table, rows, keyed, max(1, PAGE_BYTES // width))
        self.ranges, self.scans = layout.ranges, layout.scans
        self._codes: tuple[I64, I64] | None = None
        self._changes = Changes(replace(self._table, where=None), spec.updated_at, clock)
        self.ttl, self.clock = spec.ttl, clock
        self.ages = spec.ttl is not None or spec.updated_at is not None
        self._info = MasterInfo(
            schema=self._design.schema,
            key=spec.key,
            rows=rows,
            pages=layout.pages,
            bytes=max(rows * width, 1),
            max_page_bytes=3 * max(PAGE_BYTES, width),
            indexed=layout.indexed,
            unique=layout.unique,
            version=None,
            name=shown,
            resident_bytes=48 * layout.pages,  # where pages begin
        )

    # --- what there is -------------------------------------------------------------------------

    def describe(self) -> MasterInfo:
        return self._info

    def _bounds(self) -> tuple[I64, I64]:
        if not self.ranges:
            raise self._no_index("find pages by key")
        if self._codes is None:
            empty = self._layout.main.pages == 0
            self._codes = (NOTHING, NOTHING) if empty else self._layout.main.codes()
        return self._codes

    @property
    def first(self) -> I64:  # type: ignore[override]
        return self._bounds()[0]

    @property
    def last(self) -> I64:  # type: ignore[override]
        return self._bounds()[1]

    # --- reading -------------------------------------------------------------------------------

    def scan(self, start: int, max_bytes: int, columns: Sequence[str]) -> Pages:
        self.check_columns(columns)
        if not self.scans:
            raise MasterError(no_order(self._info.name))
        if start >= self._layout.main.pages:
            number = start - self._layout.main.pages
            batch = self._rows(self._layout.null, number, number, columns)
            return self._paged([(start, batch)], columns, False)
        count = max(1, max_bytes // self._info.max_page_bytes) if self._layout.exact else 1
        stop = min(self._layout.main.pages, start + count)
        return self._range(start, stop - 1, columns)

    def read(self, numbers: I64, columns: Sequence[str]) -> Pages:
        self.check_columns(columns)
        if not self.ranges:
            raise self._no_index("read pages by number")
        parts: list[tuple[int, pa.RecordBatch]] = []
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, breaks):  # neighbours come by one query
            if len(run):
                parts += self._cut(int(run[0]), int(run[-1]), columns)
        return self._paged(parts, columns, True)

    def _range(self, first: int, last: int, columns: Sequence[str]) -> Pages:
        if first == last:
            parts = [(first, self._rows(self._layout.main, first, last, columns))]
        else:
            parts = self._cut(first, last, columns)
        return self._paged(parts, columns, True)

    def _cut(
        self, first: int, last: int, columns: Sequence[str]
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Pages first..last by one query, cut where each ends; a key at the end of a page may be
        all on that page, though its rows belong to the next as well."""
        batch = self._rows(self._layout.main, first, last, columns)
        codes = codes_of([batch.column(n) for n in self.spec.key])
        ends = np.searchsorted(codes, self.last[first:last], "right")
        cuts = [0, *ends.tolist(), len(batch)]
        return [(first + i, batch.slice(a, b - a)) for i, (a, b) in enumerate(pairwise(cuts))]

    def _rows(
        self, segment: KeyOrderedRows, first: int, last: int, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Rows of some neighbouring pages, sorted by code, those without a key last."""
        needed = self._needed(columns)
        query = Query()
        conditions = segment.range(query, first, last)
        if conditions is None:
            return _empty(needed)
        query.text = f"{self._table.select(needed)} {self._table.from_(conditions)}"
        try:
            return self._sorted(self.session.select(query, needed, MOST_BYTES))
        except TooBigError:
            raise MasterError(
                f"rows between two keys of {self._info.name} have over {MOST_BYTES} bytes; leave "
                "wide columns out with columns=[...], or use sweepjoin, which asks for less at a "
                "time"
            ) from None

    def _needed(self, columns: Sequence[str]) -> list[Column]:
        wanted = {*self.spec.key, *columns}
        return [c for c in self.columns if c.name in wanted]

    def _sorted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [batch.column(n) for n in self.spec.key]
        codes, valid = codes_of(arrays), not_null(arrays)
        if valid is None and (codes[1:] >= codes[:-1]).all():
            return batch
        order = np.argsort(codes, kind="stable")
        if valid is not None:
            order = np.concatenate([order[valid[order]], np.flatnonzero(~valid)])
        return _taken(batch, order)

    def _paged(
        self, parts: list[tuple[int, pa.RecordBatch]], columns: Sequence[str], keyed: bool
    ) -> Pages:
        names = list(columns)
        arrays = [[b.column(n) for n in self.spec.key] for _, b in parts]
        codes = [np.ascontiguousarray(codes_of(a)) for a in arrays]
        schema = pa.schema([self._design.schema.field(n) for n in names])
        shown = [pa.RecordBatch.from_arrays([b.column(n) for n in names], schema=schema)
                 for _, b in parts] if names else [b.select([]) for _, b in parts]  # fmt: skip
        size = sum(b.nbytes for _, b in parts) + sum(c.nbytes for c in codes)
        self.traffic.pages += len(parts)
        self.traffic.bytes += size
        ends = [(c[0], c[-1]) if len(c) else (0, 0) for c in codes]
        return Pages(
            columns=Chunks.of(*shown, schema=schema),
            codes=np.array([c.ctypes.data for c in codes], np.int64),
            rows=np.array([len(c) for c in codes], np.int64),
            numbers=np.array([n for n, _ in parts], np.int64),
            allocated=size,
            valid=[not_null(a) for a in arrays],
            keep=(shown, codes),
            bounds=(
                np.array([a for a, _ in ends], np.int64),
                np.array([b for _, b in ends], np.int64),
            ),
        )

    # --- by key --------------------------------------------------------------------------------

    def fetch(
        self, keys: pa.RecordBatch, columns: Sequence[str], max_bytes: int | None = None
    ) -> Pages:
        """All rows of some distinct keys; TooBigError where they have more than `max_bytes`."""
        if not self._info.indexed:
            raise self._no_index("fetch rows by key")
        batch = self._fetch(keys, self._needed(columns), max_bytes)
        return self._paged([(0, batch)], columns, True)

    def _fetch(
        self, keys: pa.RecordBatch, needed: list[Column], max_bytes: int | None
    ) -> pa.RecordBatch:
        table, dialect = self._table, self._table.dialect
        arrays = [keys.column(c.name) for c in table.key]
        usable = np.ones(len(keys), np.bool_)
        for column, array in zip(table.key, arrays, strict=True):
            some = dialect.usable(column, array)
            usable &= True if some is None else some
        if not usable.all():
            arrays = [a.filter(pa.array(usable)) for a in arrays]
        if len(arrays[0]) == 0:
            return _empty(needed)
        query = Query()
        source = dialect.match(query, table.relation, table.key, arrays)
        query.text = f"{table.select(needed)} {source} {table.filter}"
        found = self.session.select(query, needed, max_bytes)
        return self._sorted(self._asked(found, arrays))

    def _asked(self, found: pa.RecordBatch, keys: list[pa.Array]) -> pa.RecordBatch:
        """Rows whose code was asked for. A collation that ignores case or padding finds more."""
        codes = codes_of([found.column(n) for n in self.spec.key])
        asked = np.sort(codes_of(keys))
        at = np.minimum(np.searchsorted(asked, codes), len(asked) - 1)
        same = asked[at] == codes
        return found if same.all() else _taken(found, np.flatnonzero(same))

    def lookup(self, keys: pa.RecordBatch) -> pa.Table:
        if not self._info.indexed:
            raise self._no_index("look keys up")
        coder = key_coder(list(self.spec.key), keys.schema, self._design.schema)
        encoded = coder.encode(keys)
        table = pa.Table.from_arrays(encoded.arrays, names=list(self.spec.key))
        if encoded.usable is not None:
            table = table.filter(pa.array(encoded.usable))
        wanted = table.group_by(list(self.spec.key)).aggregate([])
        parts = [pa.Table.from_batches([_empty(self.columns)])]
        at, count = 0, LOOKUP_KEYS
        while at < wanted.num_rows:
            some = wanted.slice(at, count).combine_chunks().to_batches()[0]
            try:
                found = self._fetch(some, self.columns, MOST_BYTES if count > 1 else None)
            except TooBigError:
                count = max(1, count // 4)
                continue
            parts.append(pa.Table.from_batches([found]))
            at += count
        return self._only(pa.concat_tables(parts), wanted).cast(self._design.schema)

    def _only(self, rows: pa.Table, wanted: pa.Table) -> pa.Table:
        """Equal in code is not yet equal, where codes are hashes."""
        if is_natural([c.type for c in self._table.key]):
            return rows
        key = list(self.spec.key)
        numbers = pa.array(np.arange(rows.num_rows))
        found = (
            rows.select(key).append_column("\0row", numbers).join(wanted, key, None, "left semi")
        )
        return rows.take(found["\0row"].sort())

    # --- what changes --------------------------------------------------------------------------

    def changes(self) -> I64 | None:
        """Codes of rows that have changed since the last call; None: too many to name."""
        return self._changes.poll()

    def newest(self) -> SqlMaster:
        return SqlMaster(self.spec)

    def changed_since(self, older: Master) -> I64 | None:
        if older is self:
            return NOTHING
        if isinstance(older, SqlMaster) and older.spec == self.spec:
            return self._changes.since(older._changes)
        return None

    def locator(self) -> dict[str, Any]:
        return {"kind": "sql", "spec": self.spec}

    def close(self) -> None:
        self.session.close()

    def __repr__(self) -> str:
        return f"<SqlMaster {self._info.name}>"


def _dialect(kind: str) -> Dialect:
    if kind == "postgresql":
        from .postgresql import PostgreSQL

        return PostgreSQL()
    from .mysql import MySQL

    return MySQL()


def _empty(columns: Sequence[Column]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, c.type) for c in columns], names=[c.name for c in columns]
    )


def _taken(batch: pa.RecordBatch, rows: NDArray[Any]) -> pa.RecordBatch:
    return batch.take(pa.array(rows))
