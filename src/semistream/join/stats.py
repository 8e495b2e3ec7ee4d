"""What a join tells about its work."""

from __future__ import annotations

from dataclasses import dataclass

from ..budget import Ledger
from ..output import Counters
from .engine import Engine


@dataclass(frozen=True)
class Stats:
    """Counters of a join. Always: rows_in = rows_matched + rows_unmatched + waiting + buffered +
    shed_out, and shed = reloaded + shed_out. The last four are 0 where no load is shed."""

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
    pieces: int = 0  # parts of batches that were taken in
    slots: int = 0  # rows that may wait at most
    disk_seconds: float = 0.0  # spent in the disk phase
    shed: int = 0  # rows moved out so far, those that a join before this one left out included
    reloaded: int = 0  # rows brought back
    shed_out: int = 0  # rows that are out now
    buffered: int = 0  # rows that have arrived and were not looked at yet
    seconds: float = 0.0  # spent in the join, without the time of those who push and read
    moves: int = 0  # how often `adapt` has divided the memory anew
    extra_rows: int = (
        0  # output rows beyond one per matched row: keys with several rows in the master
    )
    arrived: int = 0  # rows of a push that are not taken in yet, since it failed; not in rows_in


def stats_of(
    algorithm: str, engine: Engine | None, ledger: Ledger, pages_read: int, bytes_read: int
) -> Stats:
    """The counters of a join whose parts these are; there is no engine before the first batch."""
    return Stats(
        algorithm=algorithm,
        **vars(engine.counters if engine is not None else Counters()),
        waiting=engine.waiting if engine is not None else 0,
        extra_rows=_extra(engine) if engine is not None else 0,
        pages_read=pages_read,
        bytes_read=bytes_read,
        bytes_held=ledger.held,
        peak_bytes=ledger.peak,
        budget_bytes=ledger.budget,
        steps=engine.steps if engine is not None else 0,
        pieces=engine.pieces if engine is not None else 0,
        slots=engine.slots if engine is not None else 0,
        disk_seconds=engine.disk_seconds if engine is not None else 0.0,
        shed_out=engine.shed_out if engine is not None else 0,
        buffered=engine.buffered if engine is not None else 0,
    )


def _extra(engine: Engine) -> int:
    """For inner and left joins; the others show one row per stream row at most."""
    counters, how = engine.counters, engine.question.spec.how
    held = engine.order.rows if engine.order is not None else 0
    if how not in ("inner", "left"):
        return 0
    alone = counters.rows_unmatched if how == "left" else 0
    return max(0, counters.rows_out + held - counters.rows_matched - alone)
