"""SemiStreamJoin: a front stage before a disk phase, within one memory budget.

push(batch) ──> front stage ──hit──> output
                    │ miss
                waiting rows ──> disk phase ──> output
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .backlog import Backlog
from .columns import Chunks, layouts, row_bytes
from .disk import PHASES, DiskPhase, Parts
from .errors import BudgetError, MasterError, OverrunError, SpecError, StateError
from .front import Front, KeyGroups, WholeMaster
from .keys import KeyCoder, key_coder, pair_names
from .master import Master, Source, open_master
from .master.sorting import Sorter
from .memory import Ledger, parse_bytes
from .output import Counters, Output, Shape, output_shape
from .plan import STREAM_ROW, Split, choose, least_memory, split_memory
from .snapshot import load, save
from .spec import JoinSpec, Params, algorithm_named, column_names, join_type

I64 = NDArray[np.int64]
On = str | Sequence[str] | Mapping[str, str]
INTAKE_BYTES = 64  # per stream row on its way through the front stage
ROOM_BYTES = 1024  # kept free beside the rows of a chunk


@dataclass(frozen=True)
class Stats:
    """Counters of a join. rows_in = rows_matched + rows_unmatched + waiting, always."""

    algorithm: str
    rows_in: int
    rows_matched: int
    rows_unmatched: int
    rows_out: int
    waiting: int
    front_hits: int
    pages_read: int
    bytes_read: int
    bytes_held: int
    peak_bytes: int
    budget_bytes: int
    steps: int


class SemiStreamJoin:
    """Join a stream of record batches with a master table larger than memory.

    >>> import pyarrow as pa, semistream as ss
    >>> products = pa.table({"id": [1, 2], "name": ["bolt", "nut"]})
    >>> join = ss.SemiStreamJoin(ss.open_master(products, key="id"), on="id")
    >>> out = list(join.push(pa.record_batch({"id": [2, 9], "qty": [5, 1]}))) + list(join.drain())
    >>> pa.Table.from_batches(out).to_pylist()
    [{'id': 2, 'qty': 5, 'name': 'nut'}]
    """

    def __init__(
        self,
        master: Source,
        on: On,
        how: str = "inner",
        columns: Sequence[str] | None = None,
        algorithm: str = "auto",
        memory: int | str = "64MB",
        params: Params | None = None,
        *,
        suffix: str | None = None,
        stream_schema: pa.Schema | None = None,
    ) -> None:
        pairs = pair_names(on)
        self.master: Master = (
            open_master(master, [m for _, m in pairs]) if not isinstance(master, Master) else master
        )
        info = self.master.describe()
        if sorted(m for _, m in pairs) != sorted(info.key):
            raise SpecError(
                f"on={on!r} joins on the master's columns {[m for _, m in pairs]}, but the key of "
                f"{info.name} is {list(info.key)}; name all of its key columns and no other"
            )
        order = {m: i for i, m in enumerate(info.key)}
        pairs.sort(key=lambda pair: order[pair[1]])
        self.spec = JoinSpec(tuple(pairs), join_type(how), column_names(columns), suffix)
        self.params = params or Params()
        self.budget = parse_bytes(memory, info.bytes)
        name = choose(info, self.budget) if algorithm == "auto" else algorithm
        self.algorithm = algorithm_named(name)
        least_memory(self.algorithm, info, self.budget, STREAM_ROW, self.master.mapped)
        self._ledger = Ledger(self.budget)
        self._phase: DiskPhase | None = None
        self._front: Front
        self._schema: pa.Schema | None = None
        self._input: deque[pa.RecordBatch] = deque()
        self._pending: Iterator[pa.RecordBatch] | None = None
        self._steps = 0
        self._closed = False
        self._failed: BaseException | None = None
        self._widest = 0
        self._same_width = False
        self._coder: KeyCoder
        self._output: Output
        self._split: Split
        self._before = (self.master.traffic.pages, self.master.traffic.bytes)
        if stream_schema is not None:
            self._begin(stream_schema)

    # --- the four verbs ------------------------------------------------------------------------

    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch in now; returns the output that is complete now. Read all of it before the
        next call."""
        self._ready()
        if not isinstance(batch, pa.RecordBatch):
            raise SpecError(f"push takes a pyarrow RecordBatch, not {type(batch).__name__}")
        self._check_schema(batch.schema)
        self._input.append(batch)
        return self._run(self._intake())

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the disk phase, whatever waits."""
        self._ready()
        return self._run(self._one_step())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Answer everything that waits."""
        self._ready()
        return self._run(self._drain())

    def close(self) -> None:
        """Let go of memory. Waiting rows are forgotten: drain first to have them answered."""
        self._closed = True
        self._pending = None
        self._input.clear()
        self._phase = None
        self._front = Front()
        for part in list(self._ledger.parts):
            self._ledger.set(part, 0)

    def reset(self) -> None:
        """Forget waiting rows and unread output, keep what the front stage has learnt. Counters
        begin anew."""
        self._pending = self._failed = None
        self._input.clear()
        if self._phase is not None:
            self._phase.reset()
        if self._schema is not None:
            vars(self._output.counters).update(vars(Counters()))
        for part in ("output", "intake", "read"):
            self._ledger.set(part, 0)

    def __enter__(self) -> SemiStreamJoin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the output; known after the first push, or from `stream_schema`."""
        if self._schema is None:
            raise StateError("the output's columns are known after the first push")
        return self._output.shape.schema

    @property
    def stats(self) -> Stats:
        counters = self._output.counters if self._schema is not None else None
        pages, count = self._before
        waiting = len(self._phase.parts.backlog) if self._phase is not None else 0
        return Stats(
            algorithm=self.algorithm.name,
            rows_in=counters.rows_in if counters else 0,
            rows_matched=counters.rows_matched if counters else 0,
            rows_unmatched=counters.rows_unmatched if counters else 0,
            rows_out=counters.rows_out if counters else 0,
            waiting=waiting,
            front_hits=counters.front_hits if counters else 0,
            pages_read=self.master.traffic.pages - pages,
            bytes_read=self.master.traffic.bytes - count,
            bytes_held=self._ledger.held,
            peak_bytes=self._ledger.peak,
            budget_bytes=self.budget,
            steps=self._steps,
        )

    # --- order of calls ------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._closed:
            raise StateError("the join is closed; make a new one")
        if self._failed is not None:
            raise StateError(f"the join failed ({self._failed!r}); make a new one")
        if self._pending is not None:
            raise StateError(
                "output of the last call was not read to its end; read it (for out in "
                "join.push(batch): ...) before the next call"
            )

    def _run(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Start the work now, up to its first output. The rest is done as it is read, so that
        output never piles up in memory."""
        first = self._guarded(work)
        if first is None:
            return iter(())
        self._pending = work

        def rest(out: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
            while out is not None:
                yield out  # given up here, rows are still to come: the next call refuses
                out = self._guarded(work)
            self._pending = None

        return rest(first)

    def _guarded(self, work: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next output. When the master cannot be read or the budget is refused, all rows are
        still here, the pushed ones too: go on with drain(). After any other error they may not
        be, and the join is of no more use."""
        try:
            return next(work, None)
        except BaseException as error:
            self._pending = None
            known = isinstance(error, MasterError | BudgetError)
            if not known or isinstance(error, OverrunError):
                self._failed = error
            raise

    # --- the work ------------------------------------------------------------------------------

    def _intake(self) -> Iterator[pa.RecordBatch]:
        while self._input:
            batch = self._input[0]
            taken = self._piece(batch)
            if taken == 0:
                yield from self._make_room(batch)
                continue
            rest = batch.slice(taken)
            if len(rest):
                self._input[0] = rest
            else:
                self._input.popleft()
            yield from self._take(batch.slice(0, taken))
        if self._phase is not None and not self._phase.waits:
            yield from self._drain()

    def _piece(self, batch: pa.RecordBatch) -> int:
        """How many rows of the batch can be taken in now, all being misses; 0: make room first."""
        most = min(len(batch), self._split.piece_rows)
        if self._phase is None or len(batch) == 0:
            return max(1, most)
        most = min(most, self._phase.room())
        if most <= 0:
            return 0
        free = self._phase.parts.backlog.free_bytes - ROOM_BYTES
        size = batch.slice(0, most).nbytes
        if size <= free and (self._same_width or size <= self._widest):
            return most
        ends = Chunks.of(batch.slice(0, most)).widths(np.arange(most, dtype=np.int64))
        wide = np.flatnonzero(np.diff(ends) > self._widest)
        fit = int(np.searchsorted(ends, free, "right")) - 1
        return max(0, min(fit, int(wide[0]) if len(wide) else most))

    def _make_room(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Answer waiting rows; if there are none, the next row is wider than was planned for."""
        assert self._phase is not None
        if len(self._phase.parts.backlog) or self._phase.room() <= 0:
            yield from self._one_step()
        else:
            assert self._schema is not None
            ends = Chunks.of(batch.slice(0, 1)).widths(np.zeros(1, np.int64))
            self._begin(self._schema, int(ends[1]) + ROOM_BYTES)

    def _take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Front stage: answer what it can, let the rest wait."""
        self._output.counters.rows_in += len(batch)
        encoded = self._coder.encode(batch)
        rows = self._output.shape.extend(batch, encoded.arrays)
        codes, usable = encoded.codes, encoded.usable
        self._ledger.set("intake", INTAKE_BYTES * len(batch))
        hits = self._front.probe(codes)
        answered = np.zeros(len(codes), np.bool_) if usable is None else ~usable
        if hits is not None:
            if usable is not None:
                hits.start[~usable], hits.count[~usable] = -1, 0
            found = hits.count > 0
            self._output.counters.front_hits += int(found.sum())
            answered |= found
            if hits.absent is not None:
                answered |= hits.absent
        if self._front.complete:
            answered[:] = True
        if self._phase is not None and not answered.all():
            self._wait(rows, codes, answered)
        if answered.any():
            yield from self._answer_now(batch, rows, hits, answered)
        self._ledger.set("intake", 0)

    def _wait(self, rows: pa.RecordBatch, codes: I64, answered: NDArray[np.bool_]) -> None:
        assert self._phase is not None
        where = np.flatnonzero(~answered)
        own = Chunks.of(rows).gather(where)  # a copy: the batch can go
        copy = pa.RecordBatch.from_arrays(own, schema=rows.schema)
        self._phase.admit(copy, codes[where])

    def _answer_now(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch, hits: Any, answered: NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        stream = Chunks.of(rows)
        if hits is None:
            yield from self._output.unmatched(stream, np.flatnonzero(answered))
            return
        every = bool(answered.all())
        where = np.arange(len(batch)) if every else np.flatnonzero(answered)
        start = hits.start if every else hits.start[where]
        count = hits.count if every else hits.count[where]
        matched = np.zeros(len(where), np.bool_)
        yield from self._output.answer(
            stream,
            where,
            self._front.rows,
            start,
            count,
            matched,
            None,
            batch if every else None,
        )

    def _one_step(self) -> Iterator[pa.RecordBatch]:
        if self._phase is not None:
            self._steps += 1
            yield from self._phase.step()

    def _drain(self) -> Iterator[pa.RecordBatch]:
        while self._input:
            yield from self._intake()
        while self._phase is not None and len(self._phase.parts.backlog):
            yield from self._one_step()

    # --- beginning -----------------------------------------------------------------------------

    def _check_schema(self, schema: pa.Schema) -> None:
        if self._schema is None:
            self._begin(schema)
        elif self._schema.names != schema.names or self._schema.types != schema.types:
            for old, new in zip(self._schema, schema, strict=False):
                if old.name != new.name or old.type != new.type:
                    raise SpecError(
                        f"the stream changed: column {old.name!r} {old.type} is now "
                        f"{new.name!r} {new.type}; start a new join for the new columns"
                    )
            raise SpecError(
                f"the stream changed from {len(self._schema)} to {len(schema)} columns; start a "
                "new join for the new columns"
            )

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The output's columns for a stream with these columns. Raises what `push` would raise for
        names, types and budget, and allocates nothing."""
        return self._design(schema, STREAM_ROW)[1].schema

    def _design(self, schema: pa.Schema, widest: int) -> tuple[KeyCoder, Shape, Split]:
        info = self.master.describe()
        coder = key_coder(dict(self.spec.on), schema, info.schema)
        shape = output_shape(self.spec, schema, info, coder)
        widest = max(widest, row_bytes(shape.extended))
        params = self.params
        if self.master.block_pages is not None:
            params = replace(params, front_share=0.0)
        split = split_memory(self.algorithm, info, self.budget, widest, params, self.master.mapped)
        return coder, shape, split

    def _begin(self, schema: pa.Schema, widest: int = STREAM_ROW) -> None:
        """The stream's columns are known: check the question, divide memory, build the parts. Again
        when a row comes that is wider than `widest` bytes."""
        info = self.master.describe()
        coder, shape, split = self._design(schema, widest)
        ledger = self._ledger
        for part in ("front", "backlog"):
            ledger.set(part, 0)
        ledger.set("index", info.resident_bytes)
        counters = self._output.counters if self._schema is not None else Counters()
        output = Output(shape, self.spec.how, coder, split.output, ledger, counters)
        front_schema = pa.schema([info.schema.field(n) for n in shape.master])
        self._front = self._make_front(front_schema, split)
        if self.algorithm.disk != "none":
            linked = self.algorithm.disk == "scan"
            backlog = Backlog(shape.extended, split.backlog, widest, linked, ledger)
            parts = Parts(self.master, self._front, backlog, output, ledger, split.read)
            self._phase = PHASES[self.algorithm.disk](parts)
        self._coder, self._output, self._split, self._schema = coder, output, split, schema
        self._widest = max(widest, row_bytes(shape.extended))
        self._same_width = all(c.kind in ("fixed", "bits") for c in layouts(schema))

    def _make_front(self, schema: pa.Schema, split: Split) -> Front:
        info = self.master.describe()
        if self.algorithm.front == "all":
            return _load_whole(self.master, schema, self._ledger)
        width = max(16, min(info.bytes // max(1, info.rows), 1 << 20))
        # Where pages may overlap no page can tell that a key's rows are complete: nothing to cache.
        if self.master.block_pages is None and split.front >= KeyGroups.least(width):
            return KeyGroups(schema, split.front, width, self.params.threshold, self._ledger)
        return Front()

    # --- snapshots -----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Waiting rows and counters as bytes (an Arrow stream). The front stage is not part of it:
        it changes speed only."""
        self._ready()
        if self._input:
            raise StateError("rows of the last push are still to be taken in: call drain() first")
        if self._schema is None:
            return b""
        return save(self._schema, self._question(), self._output.counters, self._phase)

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot of a join with the same question on the same master version."""
        self._ready()
        if self.stats.rows_in:
            raise StateError("restore goes into a new join; this one has taken in rows")
        if snapshot == b"":
            return
        saved = load(snapshot, self._question())
        self._check_schema(saved.rows.schema)
        for name, value in saved.counters.items():
            setattr(self._output.counters, name, value)
        if self._phase is not None and saved.rows.num_rows:
            batch = saved.rows.combine_chunks().to_batches()[0]
            encoded = self._coder.encode(batch)
            saved.refill(
                self._phase, self._output.shape.extend(batch, encoded.arrays), encoded.codes
            )

    def _question(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.name,
            "spec": repr(self.spec),
            "version": self.master.describe().version,
        }


def _load_whole(master: Master, schema: pa.Schema, ledger: Ledger) -> WholeMaster:
    """Read all of the master and sort it by code."""
    info = master.describe()
    names = list(dict.fromkeys([*info.key, *schema.names]))
    wide = pa.schema([info.schema.field(n) for n in names])
    sorter = Sorter(wide, info.key, 1 << 62, Path(gettempdir()))
    for batch in master.batches(names):
        sorter.add(batch)
    whole = WholeMaster(schema, info.rows, ledger)
    for codes, rows in sorter.pieces(1 << 16):
        whole.add(codes, Chunks.of(rows.select(schema.names)))
    return whole


def join_batches(
    batches: Iterable[pa.RecordBatch],
    master: Source,
    on: On,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    algorithm: str = "auto",
    memory: int | str = "64MB",
    params: Params | None = None,
    *,
    suffix: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Join all batches of a stream; output comes as soon as it is complete."""
    with SemiStreamJoin(master, on, how, columns, algorithm, memory, params, suffix=suffix) as join:
        for batch in batches:
            yield from join.push(batch)
        yield from join.drain()
