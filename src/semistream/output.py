"""Building the output: which columns, which rows, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .budget.ledger import Ledger
from .conditions import Condition
from .errors import DuplicateKeyError, SpecError
from .kernels import gather
from .master import MasterInfo
from .ordered import NUMBER
from .rows.chunks import Chunks, Sizes
from .rows.failures import attempt
from .rows.keys import KeyCoder
from .rows.layout import shown_value
from .rows.records import Records
from .spec import JoinSpec

I64 = NDArray[np.int64]
RowSource = Chunks | Records
I32 = NDArray[np.int32]
Mask = NDArray[np.bool_]
PAIRS = 1 << 16  # matches expanded at a time


@dataclass
class Counters:
    rows_in: int = 0
    rows_matched: int = 0
    rows_unmatched: int = 0
    rows_out: int = 0
    front_hits: int = 0
    shed: int = 0  # rows moved out, those found at the start included
    reloaded: int = 0  # and brought back


@dataclass(frozen=True)
class Shape:
    """Columns of the output, and what must be read from the master for them."""

    schema: pa.Schema
    master: tuple[str, ...]  # columns to read: those shown, then the key where it is verified
    shown: int  # how many of them are shown
    stream: int  # columns of the stream
    extended: pa.Schema  # the stream's columns, then keys that had to be brought to another type
    keys: tuple[int, ...]  # where each key column in the master's type stands in `extended`
    condition: Condition | None
    stream_asked: tuple[int, ...]  # the condition's columns, in `extended`
    master_asked: tuple[int, ...]  # and in `master`
    ordered: bool  # the last column of `extended` numbers the rows

    def extend(self, batch: pa.RecordBatch, keys: list[pa.Array], number: int) -> pa.RecordBatch:
        """A stream batch with its keys in the master's types; `number` is its first row's."""
        if len(self.extended) == self.stream:
            return batch
        added = [k for k, at in zip(keys, self.keys, strict=True) if at >= self.stream]
        if self.ordered:
            added.append(pa.array(np.arange(number, number + len(batch), dtype=np.int64)))
        return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=self.extended)


def output_shape(spec: JoinSpec, stream: pa.Schema, info: MasterInfo, coder: KeyCoder) -> Shape:
    """Work out the output's columns; names that clash are an error unless `suffix` settles it."""
    keys = {m for _, m in spec.on}
    wanted = spec.columns if spec.columns is not None else tuple(info.schema.names)
    for name in wanted:
        if name not in info.schema.names:
            raise SpecError(
                f"column {name!r} does not exist in the master {info.name}; "
                f"it has {info.schema.names}"
            )
    shown = () if spec.how in ("semi", "anti") else tuple(n for n in wanted if n not in keys)
    fields = list(stream)
    taken = set(stream.names)
    for name in shown:
        final = name + spec.suffix if name in taken and spec.suffix else name
        if final in taken:
            raise SpecError(
                f"the column name {final!r} is in the stream and in the master; give "
                'suffix="_master", leave it out with columns=[...], or rename it'
            )
        taken.add(final)
        field = info.schema.field(name)
        fields.append(pa.field(final, field.type, field.nullable or spec.how == "left"))
    if spec.matched is not None:
        fields.append(_matched_field(spec, taken))
    extra = coder.master if coder.verify else ()
    asked = spec.condition.master_columns if spec.condition is not None else ()
    read = shown + extra + tuple(dict.fromkeys(n for n in asked if n not in shown + extra))
    extended, places = _extended(stream, coder, spec.ordered)
    return Shape(
        pa.schema(fields),
        read,
        len(shown),
        len(stream),
        extended,
        places,
        spec.condition,
        tuple(stream.names.index(n) for n in spec.condition.stream_columns)
        if spec.condition is not None
        else (),
        tuple(read.index(n) for n in asked),
        spec.ordered,
    )


def _matched_field(spec: JoinSpec, taken: set[str]) -> pa.Field:
    if spec.how != "left":
        raise SpecError(
            f"matched_column={spec.matched!r} tells rows with a match from others, and "
            f'how="{spec.how}" has only one kind; use how="left", or leave it out'
        )
    if spec.matched in taken:
        raise SpecError(
            f"matched_column={spec.matched!r}: there is such a column already; choose another"
        )
    return pa.field(spec.matched, pa.bool_(), False)


def _extended(
    stream: pa.Schema, coder: KeyCoder, ordered: bool
) -> tuple[pa.Schema, tuple[int, ...]]:
    """Keys are kept twice only where the stream's own column has another type."""
    fields, keys = list(stream), []
    for name, target in zip(coder.stream, coder.types, strict=True):
        if not coder.verify or stream.field(name).type == target:
            keys.append(stream.get_field_index(name))
        else:
            keys.append(len(fields))
            fields.append(pa.field(f"__key_{len(fields)}", target))
    if ordered:
        fields.append(pa.field(NUMBER, pa.int64(), False))
    return pa.schema(fields), tuple(keys)


def duplicate_key(key: dict[str, object], count: int) -> DuplicateKeyError:
    shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
    others = f" and {count - 1:,} other keys" if count > 1 else ""
    return DuplicateKeyError(
        f"the master has more than one row for {shown}{others}, and this join wants one at most "
        '(validate="many_to_one", or a master opened with unique=True); remove the other rows, or '
        "leave that out: then every match is a row of the output",
        key,
        count,
    )


class Output:
    """Turns answers (stream rows, master rows) into record batches and keeps the counters."""

    def __init__(
        self,
        shape: Shape,
        how: str,
        coder: KeyCoder,
        limit: int,
        ledger: Ledger,
        counters: Counters,
        at_most_one: bool = False,
    ) -> None:
        """`at_most_one`: a stream row with two matches is an error."""
        self._at_most_one = at_most_one
        self.shape, self.how, self.limit, self.counters = shape, how, limit, counters
        self._coder, self._ledger = coder, ledger
        self._stream_columns = range(shape.stream)
        self._master_columns = range(shape.shown)
        self.schema = shape.schema
        if shape.ordered:
            self.schema = shape.schema.append(pa.field(NUMBER, pa.int64(), False))
        self.verifies = coder.verify  # codes are hashes, and pairs are compared by value
        self._tells = len(shape.schema) > shape.stream + shape.shown  # which rows have a match
        self._step = max(1, limit // 256)

    def answer(
        self,
        stream: Chunks,
        rows: I64,
        master: RowSource,
        start: I64,
        count: I32,
        matched: Mask,
        final: Mask | None = None,
        whole: pa.RecordBatch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Answer stream rows (locations `rows`) whose matches begin at `start` and are `count`
        many. `matched` says which were matched before and is brought up to date; `final` says which
        of them will see no more of the master (None: all). `whole` is a batch whose rows are just
        `rows`, in order: its columns are then passed on without a copy."""
        once = self.how == "semi" or self.how == "anti"
        fresh = ~matched
        if self._at_most_one:  # before anything leaves: rows can still be saved
            self._check_single(stream, rows, master, start, count, matched)
        if once and not self._coder.verify:
            matched |= count > 0
        else:
            for who, loc in self._pairs(master, start, count):
                if self._coder.verify:
                    same = self._verified(stream, rows[who], master, loc)
                    if not same.all():
                        who, loc = who[same], loc[same]
                matched[who] = True
                if not once:
                    one_each = len(who) == len(rows) and count.max(initial=0) <= 1
                    every = whole if one_each else None
                    yield from self._batches(stream, rows[who], master, loc, every)
        fresh &= matched
        self.counters.rows_matched += int((matched if final is None else matched & final).sum())
        if self.how == "semi" and fresh.any():
            every = whole if whole is not None and fresh.all() else None
            yield from self._batches(stream, rows[fresh], None, None, every)
        lone = ~matched if final is None else final & ~matched
        if lone.any():
            yield from self.unmatched(stream, rows[lone])

    def unmatched(self, stream: Chunks, rows: I64) -> Iterator[pa.RecordBatch]:
        """Rows that the master has nothing for."""
        self.counters.rows_unmatched += len(rows)
        if self.how in ("left", "anti") and len(rows):
            yield from self._batches(stream, rows, None, None, None)

    def leave(self, stream: Chunks, rows: I64, matched: Mask) -> Iterator[pa.RecordBatch]:
        """Rows that have met the whole master; the unmatched ones are reported now."""
        self.counters.rows_matched += int(matched.sum())
        yield from self.unmatched(stream, rows[~matched])

    def pairs(
        self, stream: Chunks, rows: I64, slots: I32, master: RowSource, loc: I64, matched: Mask
    ) -> Iterator[pa.RecordBatch]:
        """Matches found one by one (a scan): rows[k] in the stream with loc[k] in the master.
        slots[k] is the row's place in `matched`."""
        if self._coder.verify:
            same = self._verified(stream, rows, master, loc)
            rows, slots, loc = rows[same], slots[same], loc[same]
        if self._at_most_one:
            yield from attempt(partial(self._check_pairs, stream, rows, slots, matched))
        if self.how == "semi":
            new = np.flatnonzero(~matched[slots])
            new = new[np.unique(slots[new], return_index=True)[1]]
            yield from self._batches(stream, rows[np.sort(new)], None, None, None)
        matched[slots] = True
        if self.how in ("inner", "left"):
            yield from self._batches(stream, rows, master, loc, None)

    def _check_single(
        self, stream: Chunks, rows: I64, master: RowSource, start: I64, count: I32, matched: Mask
    ) -> None:
        """Raise if one of these rows has two matches, those it met before included."""
        several = np.flatnonzero((count > 1) | (matched & (count > 0)))
        if len(several) == 0:
            return
        found = matched[several].astype(np.int64)
        if self._coder.verify:  # equal codes may be different keys
            for who, loc in self._pairs(master, start[several], count[several]):
                same = self._verified(stream, rows[several[who]], master, loc)
                found += np.bincount(who[same], minlength=len(several))
        else:
            found += count[several]
        if (found > 1).any():
            self._refuse(stream, rows[several[found > 1]])

    def _check_pairs(self, stream: Chunks, rows: I64, slots: I32, matched: Mask) -> None:
        """The same for pairs found one by one."""
        order = np.argsort(slots, kind="stable")
        again = matched[slots]
        again[order[1:]] |= slots[order[1:]] == slots[order[:-1]]
        if again.any():
            self._refuse(stream, rows[again])

    def _refuse(self, stream: Chunks, rows: I64) -> None:
        """These stream rows have more than one match."""
        names = self._coder.stream
        places = [self.shape.extended.get_field_index(name) for name in names]
        keys = pa.table(stream.gather(rows, places), names=[str(i) for i in range(len(names))])
        count = keys.group_by(keys.column_names).aggregate([]).num_rows
        raise duplicate_key(
            dict(zip(self._coder.master, (shown_value(c[0]) for c in keys.columns), strict=True)),
            count,
        )

    def _pairs(self, master: RowSource, start: I64, count: I32) -> Iterator[tuple[I64 | I32, I64]]:
        if len(count) == 0 or count.max() <= 1:
            who = np.flatnonzero(start >= 0)
            yield who, start[who] if len(who) < len(start) else start
            return
        row = skip = 0
        while row < len(start):
            buffer, loc = np.empty(PAIRS, np.int32), np.empty(PAIRS, np.int64)
            k, row, skip = master.pairs(start, count, row, skip, buffer, loc)
            if k:
                yield buffer[:k], loc[:k]

    def _batches(
        self,
        stream: Chunks,
        rows: I64,
        master: RowSource | None,
        loc: I64 | None,
        whole: pa.RecordBatch | None,
    ) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(rows):
            some = rows[at : at + self._step]
            found = None if loc is None else loc[at : at + self._step]
            part = None if whole is None else whole.slice(at)
            batch = yield from attempt(partial(self._batch, stream, some, master, found, part))
            self.counters.rows_out += len(batch)
            at += len(batch)
            yield batch
        self._ledger.set("output", 0)

    def _batch(
        self,
        stream: Chunks,
        rows: I64,
        master: RowSource | None,
        loc: I64 | None,
        whole: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        """As many of these rows, at least one, as one batch may have."""
        n, sizes, master_sizes = self._fit(stream, rows, master, loc)
        if whole is not None:
            columns = whole.slice(0, n).columns[: self.shape.stream]
        else:
            columns = stream.gather(rows[:n], self._stream_columns, sizes)
        if master is not None and loc is not None:
            columns += master.gather(loc[:n], self._master_columns, master_sizes)
        elif self.how == "left":
            shown = [self.shape.schema.field(j).type for j in self._added()]
            columns += [pa.nulls(n, t) for t in shown]
        if self._tells:
            columns.append(pa.repeat(pa.scalar(master is not None), n))
        if self.shape.ordered:
            columns += stream.gather(rows[:n], [len(self.shape.extended) - 1])
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._ledger.set("output", batch.nbytes + 24 * n)
        return batch

    def _added(self) -> range:
        return range(self.shape.stream, self.shape.stream + self.shape.shown)

    def _fit(
        self, stream: Chunks, rows: I64, master: RowSource | None, loc: I64 | None
    ) -> tuple[int, Sizes, Sizes | None]:
        """How many of the rows make a batch of at most `limit` bytes (at least one), and the
        column sizes found on the way. Adapts the next guess."""
        fixed, sizes = stream.measure(rows, self._stream_columns)
        every = [spans.ends for spans in sizes.values()]
        master_sizes: Sizes | None = None
        if master is not None and loc is not None:
            more, master_sizes = master.measure(loc, self._master_columns)
            fixed += more
            every += [spans.ends for spans in master_sizes.values()]
        elif self.how == "left":
            fixed += 16 * self.shape.shown
        fixed += 24 + 16 * len(every)
        total = fixed * len(rows) + sum(int(ends[-1]) for ends in every)
        n = len(rows)
        if total > self.limit:
            bytes_at = np.arange(len(rows) + 1, dtype=np.int64) * fixed + sum(every)
            n = max(1, int(np.searchsorted(bytes_at, self.limit, "right")) - 1)
        self._step = max(1, min(4 * self._step, self.limit * len(rows) // max(1, total)))
        return n, sizes, master_sizes

    def _verified(self, stream: Chunks, rows: I64, master: RowSource, loc: I64) -> Mask:
        """Which pairs have equal keys, compared on the values: a hash is only a hint."""
        same = np.ones(len(rows), np.bool_)
        for i in range(len(self._coder.types)):
            a = stream.spans(rows, self.shape.keys[i])
            b = master.spans(loc, self.shape.shown + i)
            gather.same_spans(a.address, a.ends, b.address, b.ends, same)
        return same
