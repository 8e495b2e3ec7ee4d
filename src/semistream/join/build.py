"""The parts of a join, made for a question, the stream's columns and a division of memory."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..budget import COLLECT, Division, Ledger, Split, divided
from ..disk import BY_KEY, PHASES, Backlog, DiskPhase, Parts, shows_groups
from ..front import AgingGroups, Front, KeyGroups, load_whole, pinned_block, pinned_front
from ..master import Pages, facts
from ..output import Counters, Output, Reorder
from ..planning import StreamSample
from .question import Question


class Assembly:
    """Front stage, disk phase and output, and how the memory is divided among them."""

    def __init__(self, question: Question, schema: pa.Schema, ledger: Ledger) -> None:
        self.question, self.schema, self.ledger = question, schema, ledger
        self.counters = Counters()
        self.order: Reorder | None = None
        self.split: Split
        self.division: Division | None = None  # of memory, where it is not the plan's any more
        self.sample: StreamSample | None = None

    def _build(self, widest: int, kept: Front | None = None) -> None:
        """Make the parts; again when a row comes that is wider than was planned for, or for another
        version of the master, with the front stage `kept` from before."""
        question, ledger = self.question, self.ledger
        info = question.master.describe()
        before = self.split.front if kept is not None else 0
        self.coder, shape, self.split, self._widest = question.design(self.schema, widest)
        self.sample = (self.sample or StreamSample()) if self.split.sample else None
        if self.division is not None:
            self.split = self.divided(self.division)
        if kept is not None:
            self.split, kept = _with_front(self.split, before, kept)
        self._built = False
        self.phase: DiskPhase | None = None  # let go of old parts before new ones are made
        self.front = Front()
        for part in ("backlog", "pool", "collect", *(() if kept is not None else ("front",))):
            ledger.set(part, 0)
        ledger.set("index", info.resident_bytes)
        ledger.set("sample", self.sample.nbytes if self.sample is not None else 0)
        how, limit = question.spec.how, self.split.output
        single = question.at_most_one
        self.output = Output(shape, how, self.coder, limit, ledger, self.counters, single)
        if shape.ordered and self.order is None:
            self.order = Reorder(self.output.schema, self.split.held, limit, ledger)
        made = self.make_front() if kept is None else (kept, None, 0)
        self.front, pinned, pinned_pages = made
        disk = question.algorithm.disk
        if question.master.by_key:
            disk = BY_KEY.get(disk, disk)
        if question.spec.condition is not None:
            disk = "residual" if question.spec.on else "nested"
        if disk != "none":
            kind = PHASES[disk]
            limit = self.split.backlog
            backlog = Backlog(shape.extended, limit, self._widest, kind.linked, ledger)
            parts = Parts(
                question.master, self.front, backlog, self.output, ledger, question.params,
                self.split.read, self.split.pool, self.split.front // COLLECT, pinned, pinned_pages,
                question.shed, self.order is not None,
            )  # fmt: skip
            self.phase = kind(parts)
        self._built = True

    def divided(self, division: Division) -> Split:
        """The split that a division makes."""
        question = self.question
        where = (facts(question.master), question.budget, self._widest, question.shed)
        groups = question.algorithm.front == "groups" or bool(self.split.pool)
        fixed = None if groups else self.split.front  # pinned pages stay, or there is no cache
        return divided(self.split, *where, division, fixed)

    def front_bytes(self, split: Split) -> int:
        """Of the front stage's share, what groups have that are complete."""
        question = self.question
        collects = question.algorithm.disk == "scan" and not shows_groups(question.master)
        return split.front - (split.front // COLLECT if collects else 0)

    def master_row(self) -> int:
        """Bytes of a row of the master, about."""
        info = self.question.master.describe()
        return max(16, min(info.bytes // max(1, info.rows), 1 << 20))

    def make_front(self) -> tuple[Front, Pages | None, int]:
        """The front stage, and for xhybridjoin the pinned pages and how many they are."""
        question, limit = self.question, self.split.front
        info = question.master.describe()
        schema = pa.schema([info.schema.field(n) for n in self.output.shape.master])
        kind = question.algorithm.front
        if kind == "all":
            return load_whole(question.master, schema, self.ledger), None, 0
        if kind == "pinned":
            waiting = question.params.pinned_probe == "waiting"
            make = pinned_block if waiting else pinned_front
            return make(question.master, schema, limit, self.ledger)
        width, limit = self.master_row(), self.front_bytes(self.split)
        threshold, ages = question.params.threshold, question.master.ages
        if kind == "groups" and ages and limit >= AgingGroups.least(width):
            aging = AgingGroups(schema, limit, width, threshold, self.ledger, question.master)
            return aging, None, 0
        if kind == "groups" and not ages and limit >= KeyGroups.least(width):
            return KeyGroups(schema, limit, width, threshold, self.ledger), None, 0
        return Front(), None, 0


def _with_front(split: Split, share: int, kept: Front) -> tuple[Split, Front | None]:
    """A division of memory in which the front stage keeps its share, if it is much the same."""
    more = share - split.front
    if abs(more) > split.backlog // 2:
        return split, None
    return replace(split, front=share, backlog=split.backlog - more), kept
