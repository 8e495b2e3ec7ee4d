"""The parts of a join, front stage and disk phase, for a question and a division of memory."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..budget import COLLECT, Ledger, Split
from ..disk import Backlog, DiskPhase, NoDisk, Parts, phase_named, shows_groups
from ..front import ExpiringGroups, Front, KeyGroups, load_whole, pinned_block, pinned_front
from ..master import Master, Pages
from ..output import Output
from .question import Design, Question


def make_front(
    question: Question, design: Design, split: Split, ledger: Ledger
) -> tuple[Front, Pages | None, int]:
    """The front stage, and for xhybridjoin the pinned pages and how many they are."""
    master, kind = question.master, question.algorithm.front
    info = master.describe()
    schema = pa.schema([info.schema.field(n) for n in design.shape.master])
    if kind == "all":
        return load_whole(master, schema, ledger), None, 0
    if kind == "pinned":
        waiting = question.params.pinned_probe == "waiting"
        make = pinned_block if waiting else pinned_front
        return make(master, schema, split.front, ledger)
    width, limit = master_row(master), front_bytes(question, split)
    threshold = question.params.threshold
    if kind == "groups" and master.ages and limit >= ExpiringGroups.least(width):
        return ExpiringGroups(schema, limit, width, threshold, ledger, master), None, 0
    if kind == "groups" and not master.ages and limit >= KeyGroups.least(width):
        return KeyGroups(schema, limit, width, threshold, ledger), None, 0
    return Front(), None, 0


def make_phase(
    question: Question,
    design: Design,
    split: Split,
    ledger: Ledger,
    *,
    front: Front,
    output: Output,
    pinned: Pages | None,
    pinned_pages: int,
) -> DiskPhase:
    """The disk phase, with a backlog for the rows that wait."""
    kind = phase_named(_disk(question))
    if kind is NoDisk:
        return NoDisk()
    shape = design.shape
    return kind(
        Parts(
            master=question.master,
            front=front,
            backlog=Backlog(shape.extended, split.backlog, design.widest, kind.linked, ledger),
            output=output,
            ledger=ledger,
            params=question.params,
            read_bytes=split.read,
            pool_bytes=split.pool,
            collect_bytes=split.front // COLLECT,
            pinned=pinned,
            pinned_pages=pinned_pages,
            steady=question.shed,
            in_order=shape.ordered,
        )
    )


def _disk(question: Question) -> str:
    if question.spec.condition is not None:
        return "residual" if question.spec.on else "nested"
    algorithm = question.algorithm
    fetch = algorithm.disk_facts.fetch_word if question.master.by_key else ""
    return fetch or algorithm.disk


def front_bytes(question: Question, split: Split) -> int:
    """Of the front stage's share, what groups have that are complete."""
    collects = question.algorithm.disk_facts.scans and not shows_groups(question.master)
    return split.front - (split.front // COLLECT if collects else 0)


def master_row(master: Master) -> int:
    """Bytes of a row of the master, about."""
    info = master.describe()
    return max(16, min(info.bytes // max(1, info.rows), 1 << 20))


def keep_front(split: Split, share: int) -> Split | None:
    """A division of memory in which the front stage keeps its share; None: it is too different."""
    more = share - split.front
    if abs(more) > split.backlog // 2:
        return None
    return replace(split, front=share, backlog=split.backlog - more)
