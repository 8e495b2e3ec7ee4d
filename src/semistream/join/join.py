"""SemiStreamJoin: a front stage before a disk phase, within one memory budget.

push(batch) ──> front stage ──hit──> output
                    │ miss
                waiting rows ──> disk phase ──> output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import pyarrow as pa

from ..budget import Ledger
from ..errors import BudgetError, MasterError, SpecError, StateError
from ..master import Master, Source
from ..planning import has_law, workload_of
from ..rows.encodings import Encodings
from ..rows.failures import Failure
from ..rows.keys import On
from ..safety import SealError, seal, unseal
from ..spec import Condition, Params, Workload
from .adapt import Adapting, Pace, divide_anew
from .calls import Calls, Stopwatch
from .engine import Engine
from .hot_keys import learn, load_hot_keys, save_hot_keys
from .question import Asked, Question, ask, check_same_columns, stream_of
from .shed import Shedding, SheddingEngine, load_shed, restore_shed, save_shed, shed_target
from .snapshot import Saved, load, save
from .stats import Stats, stats_of

_SNAPSHOT = "snapshot"  # the kind of sealed bytes


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
        on: On | None = None,
        how: str = "inner",
        columns: Sequence[str] | None = None,
        algorithm: str = "auto",
        memory: int | str = "64MB",
        params: Params | None = None,
        *,
        suffix: str | None = None,
        condition: Condition | None = None,
        ordered: bool = False,
        stream_schema: pa.Schema | None = None,
        shed: Shedding | None = None,
        matched_column: str | None = None,
        workload: Workload | None = None,
        validate: str | None = None,
        adapt: bool | Pace = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if workload is None and stream_schema is not None:
            workload = stream_of(stream_schema)
        asked = Asked(
            on=on,
            how=how,
            columns=columns,
            algorithm=algorithm,
            memory=memory,
            params=params,
            suffix=suffix,
            condition=condition,
            ordered=ordered,
            sheds=shed is not None,
            matched_column=matched_column,
            workload=workload,
            validate=validate,
        )
        question = ask(master, asked)
        self.budget = question.budget  # in bytes, also where it was a share of the master
        self._asked = replace(asked, memory=self.budget)
        self._auto = algorithm == "auto"
        self._own_master = not isinstance(master, Master)
        self._set_question(question)
        if adapt and shed is not None:
            raise SpecError(
                "adapt=True moves memory between parts of a join, and one that sheds load needs "
                "them as they are; leave one of adapt= and shed= out"
            )
        if not isinstance(adapt, bool | Pace):
            raise SpecError(f"adapt={adapt!r}: give True, False or a Pace")
        self._pace = Pace() if adapt is True else adapt or None
        self._watch = Stopwatch(clock)
        self._adapting: Adapting | None = None
        self.shed, self._target = shed, shed_target(shed, question.algorithm.name)
        self._ledger = Ledger(self.budget)
        self._engine: Engine | None = None
        self._pushed: list[pa.RecordBatch] = []  # not yet the engine's: it could not be made
        self._guessed = False  # what the stream's columns are
        self._calls = Calls(self._watch)
        self._before = (self.master.traffic.pages, self.master.traffic.bytes)
        if stream_schema is not None:
            engine = self._engine_for(stream_schema)
            if isinstance(engine, SheddingEngine):
                engine.pick_up()

    def _set_question(self, question: Question) -> None:
        self._question = question
        self.master, self.spec, self.params = question.master, question.spec, question.params
        self.algorithm = question.algorithm

    # --- the verbs ------------------------------------------------------------------------

    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch in now; returns the output that is complete now. Read all of it before the
        next call. After a SpecError or StateError the batch was refused; after any other error its
        rows are here, and the next call goes on with them."""
        self._calls.ready()
        if not isinstance(batch, pa.RecordBatch):
            raise SpecError(f"push takes a pyarrow RecordBatch, not {type(batch).__name__}")
        if self._engine is None:
            self.check(batch.schema)
        else:
            self._check_columns(self._engine, batch.schema)
        self._pushed.append(batch)
        return self._begin(self._intake())

    def _intake(self) -> Iterator[pa.RecordBatch]:
        yield from self._running().intake()

    def _running(self) -> Engine:
        """The engine, made for the first batch's columns, with all rows that were pushed."""
        engine = self._engine or self._engine_for(self._pushed[0].schema)
        engine.input.extend(self._pushed)
        self._pushed.clear()
        return engine

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the disk phase, whatever waits. It need not answer all of it:
        `drain` does."""
        return self._go_on(lambda engine: engine.step())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Answer everything that waits, and all shed rows."""
        return self._go_on(lambda engine: engine.drain())

    def _go_on(
        self, verb: Callable[[Engine], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        self._calls.ready()
        self._go_on_with_shed()
        if self._engine is None and not self._pushed:
            return iter(())
        return self._begin(verb(self._running()))

    def refresh(self, master: Master | None = None) -> Iterator[pa.RecordBatch]:
        """Answer everything that waits, then go on with the newest version of the master, or with
        `master`, a version of it. Cached rows that did not change stay. Read all of the output:
        the version moves when it ends."""
        self._calls.ready()
        self._go_on_with_shed()
        return self._begin(self._refresh(master))

    def _begin(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._calls.take(self._encoded(work))

    def _encoded(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Output with the dictionaries and views that the stream came with."""
        for out in work:
            if isinstance(out, Failure) or self._engine is None:
                yield out
            else:
                yield from self._engine.encodings.encode(out)

    def _refresh(self, wanted: Master | None) -> Iterator[pa.RecordBatch]:
        if self._engine is not None or self._pushed:
            yield from self._running().drain()
        newer = self.master.newest() if wanted is None else wanted
        if newer is not self.master:
            try:
                self._move(newer)
            except BaseException:
                if wanted is None:
                    newer.close()
                raise

    def _move(self, master: Master) -> None:
        old, changed = self.master, master.changed_since(self.master)
        begin = (master.traffic.pages, master.traffic.bytes)  # what the move itself reads counts
        try:
            question = ask(master, replace(self._asked, algorithm=self.algorithm.name))
        except BudgetError:  # it has grown; "auto" may know another way
            if not self._auto:
                raise
            question = ask(master, replace(self._asked, algorithm="auto"))
        if self._engine is not None:
            schema = question.design(self._engine.schema).shape.schema
            if not schema.equals(self._engine.design.shape.schema):
                raise MasterError(
                    f"the columns of {master.describe().name} are others now, so the output would "
                    "change in the middle of the stream; start a new join"
                )
            self._engine.move(question, changed)
        pages, count = self._read_so_far()
        self._set_question(question)
        self._before = (begin[0] - pages, begin[1] - count)
        if self._own_master:
            old.close()
        self._own_master = True

    def close(self) -> None:
        """Let go of memory. Waiting rows are forgotten: drain first to have them answered."""
        self._last = self.stats
        self._calls.close()
        if self._engine is not None and self._engine.order is not None:
            self._engine.order.close()
        self._engine = None
        for part in list(self._ledger.parts):
            self._ledger.set(part, 0)

    def learnt(self, most: int | None = None) -> bytes:
        """Which keys the front stage has found to be popular, as bytes, for `learn`: all, or the
        `most` popular ones."""
        return save_hot_keys(self._engine, most)

    def learn(self, learnt: bytes) -> None:
        """Begin with the popular keys of another join on this master: their rows are read now, so
        that the front stage is not empty. It changes speed only. The stream's columns must be
        known: give stream_schema=, or push first; nothing may wait."""
        self._calls.settled()
        if learnt == b"":
            return
        codes, uses = load_hot_keys(learnt)
        if self._engine is None or self._engine.waiting:
            raise StateError("learn comes before rows wait: give stream_schema=, or drain first")
        learn(self._engine, codes, uses)

    def reset(self) -> None:
        """Forget waiting rows and unread output, keep what the front stage has learnt. Forgotten
        rows no longer count as rows in."""
        self._calls.forget()
        self._pushed.clear()
        if self._engine is not None:
            self._engine.reset()

    def __enter__(self) -> SemiStreamJoin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the output; known after the first push, or from `stream_schema`."""
        if self._engine is None:
            raise StateError("the output's columns are known after the first push")
        return self._engine.encodings.output_schema(self._engine.design.shape.schema)

    @property
    def stats(self) -> Stats:
        if self._calls.closed:
            return replace(self._last, waiting=0, arrived=0, buffered=0, bytes_held=0)
        stats = stats_of(self.algorithm.name, self._engine, self._ledger, *self._read_so_far())
        moves = self._adapting.divider.moves if self._adapting is not None else 0
        input = self._engine.input if self._engine is not None else ()
        arrived = sum(map(len, (*input, *self._pushed)))
        return replace(stats, seconds=self._watch.seconds, moves=moves, arrived=arrived)

    def _read_so_far(self) -> tuple[int, int]:
        """Pages and bytes of the master."""
        pages, count = self._before
        return self.master.traffic.pages - pages, self.master.traffic.bytes - count

    @property
    def division(self) -> dict[str, int]:
        """Bytes that each part may take now, by its name; empty before the first batch. With
        `adapt` they change while the join runs."""
        return asdict(self._engine.split) if self._engine is not None else {}

    def workload(self) -> Workload:
        """What the stream has been like of late: skew, orphans, size of rows, popularity of keys.
        With a budget of about a megabyte or less, only what counters say."""
        if self._calls.closed:
            raise StateError("the join is closed; ask for its workload before")
        return workload_of(None if self._engine is None else self._engine.seen())

    def explain(self) -> str:
        """Why this algorithm, how its memory is divided, the rate that the model predicts, and why
        the others lost. With algorithm="auto" all of them are compared. What is known of the stream
        comes from workload=; `sketch_stream` finds it in a sample."""
        if self._question.plan is None:
            why = "with a condition or with shedding,"
            if not has_law(self.algorithm):
                why = "it has no cost law, so no rate is predicted and"
            return (
                f"{self.algorithm.name}: {self.algorithm.help}\n  not planned: {why} memory is "
                "divided by fixed shares"
            )
        return str(self._question.plan)

    # --- beginning -----------------------------------------------------------------------------

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The output's columns for a stream with these columns. Raises what `push` would raise for
        names, types and budget, and allocates nothing."""
        encodings = Encodings(schema)
        return encodings.output_schema(self._question.design(encodings.inside).shape.schema)

    def _engine_for(self, schema: pa.Schema) -> Engine:
        """The engine, made for these columns if there is none; else they must be the same."""
        if self._engine is None:
            if self.shed is None or self._target is None:
                self._engine = Engine(self._question, schema, self._ledger, self._watch.clock)
                if self._pace is not None:
                    self._adapting = Adapting(self._engine, self._pace, self._watch)
            else:
                self._engine = SheddingEngine(
                    self._question, schema, self._ledger, self.shed, self._target
                )
        self._check_columns(self._engine, schema)
        return self._engine

    def _check_columns(self, engine: Engine, schema: pa.Schema) -> None:
        if self._guessed and Encodings(schema).inside.types == engine.schema.types:
            engine.encode_as(schema)
            self._guessed = False
        check_same_columns(engine.encodings.outside, schema)

    def _go_on_with_shed(self) -> None:
        """Rows that an earlier join left out say what the stream's columns are."""
        if self._engine is None and self._target is not None:
            found = self._target.list()
            if found:
                schema = self._target.get(found[0].name).schema
                self._engine_for(schema.remove_metadata())
                self._guessed = True  # segments have plain values, the stream may be encoded

    # --- snapshots -----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Waiting rows, rows of a push that failed, and counters as bytes. The front stage is not
        part of it: it changes speed only."""
        self._calls.settled()
        if self._engine is None and not self._pushed:
            return seal(_SNAPSHOT, b"")
        engine = self._running()
        if engine.order is not None and (engine.waiting or engine.order.rows):
            raise StateError("an ordered join holds answers that wait: call drain() first")
        saved = save(engine, self.algorithm.name, self._identity(), self.params)
        if isinstance(engine, SheddingEngine):
            saved = save_shed(engine, saved)
        return seal(_SNAPSHOT, saved)

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot of a join with the same question on the same master version. With
        algorithm="auto" it goes on with the algorithm of that join."""
        self._calls.settled()
        if self.stats.rows_in > self.stats.shed_out:
            raise StateError("restore goes into a new join; this one has taken in rows")
        try:
            content = unseal(_SNAPSHOT, snapshot)
        except SealError as error:
            raise StateError(
                f"these {len(snapshot)} bytes are not a whole snapshot of a join ({error}); "
                "restore an older one"
            ) from error
        if content.size == 0:  # of a join that was not used
            return
        if self.shed is not None:
            content, shed = load_shed(content)
        saved = load(content, self._identity())
        engine = self._engine_of(saved)
        if saved.division is not None:
            divide_anew(engine, saved.division)
        saved.refill(engine)
        engine.input.extend(saved.input)
        engine.counters.set(saved.counters)
        if isinstance(engine, SheddingEngine):
            restore_shed(engine, shed)

    def _engine_of(self, saved: Saved) -> Engine:
        """The engine of the join that was saved: its algorithm, its knobs, its columns."""
        if saved.algorithm != self.algorithm.name:
            if not self._auto:
                raise StateError(
                    f"the snapshot has algorithm {saved.algorithm!r}, this join "
                    f"{self.algorithm.name!r}; restore it into a join with algorithm="
                    f'"{saved.algorithm}" or "auto"'
                )
            self._set_question(ask(self.master, replace(self._asked, algorithm=saved.algorithm)))
            self._engine = None
        # Another machine, or this one calibrated since, may divide the memory in another way.
        params = replace(self.params, **saved.knobs)
        if params != self.params:
            self._set_question(replace(self._question, params=params))
            if self._engine is not None:
                self._engine.move(self._question, None)
        return self._engine_for(saved.columns)

    def _identity(self) -> dict[str, Any]:
        """What a snapshot must have in common with the join that it is restored into."""
        return {
            "spec": repr(self.spec),
            "version": self.master.describe().version,
            "master": self.master.identity(),
        }


# --- a whole stream through one join ------------------------------------------------------------


def join_batches(
    batches: Iterable[pa.RecordBatch],
    master: Source,
    on: On | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    algorithm: str = "auto",
    memory: int | str = "64MB",
    params: Params | None = None,
    *,
    suffix: str | None = None,
    condition: Condition | None = None,
    ordered: bool = False,
    matched_column: str | None = None,
    validate: str | None = None,
    adapt: bool | Pace = False,
) -> Iterator[pa.RecordBatch]:
    """Join all batches of a stream; output comes as soon as it is complete."""
    with SemiStreamJoin(
        master,
        on,
        how,
        columns,
        algorithm,
        memory,
        params,
        suffix=suffix,
        condition=condition,
        ordered=ordered,
        matched_column=matched_column,
        validate=validate,
        adapt=adapt,
    ) as join:
        for batch in batches:
            yield from join.push(batch)
        yield from join.drain()
