"""Building the output: which columns, which rows, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ..budget import Ledger
from ..errors import DuplicateKeyError
from ..kernels import gather
from ..kernels.arrays import I32, I64, Mask
from ..rows.chunks import Chunks, Sizes
from ..rows.failures import attempt
from ..rows.keys import KeyCoder
from ..rows.layout import shown_value
from ..rows.records import Records
from .shape import NUMBER, Shape

RowSource = Chunks | Records
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

    def set(self, counts: Mapping[str, int]) -> None:
        """Go on from these."""
        for name, count in counts.items():
            setattr(self, name, count)


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
        *,
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
