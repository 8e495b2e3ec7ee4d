"""The processor of the papers: seconds per row of the operations that they count."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.join.stats import Stats
from semistream.planning.work import Case, Work
from semistream.spec import algorithm_named
from semistream.testing import ManualClock


@dataclass(frozen=True)
class Cpu:
    """Seconds per row of what the papers count, apart from reading."""

    take_in: float  # a stream row into the stream buffer (c_S)
    probe: float  # a stream row asks the front stage (c_H)
    append: float  # a stream row into the table of waiting rows and the queue (c_A)
    expire: float  # a stream row out of both (c_E)
    probe_master: float  # a master row asks the waiting rows, or a waiting row a page (c_H)
    emit: float  # an output row (c_O)

    def seconds(self, case: Case, work: Work) -> dict[str, float]:
        """Per stream row, by part: what `Machine` asks a processor."""
        algorithm = case.algorithm
        asks = 1.0 if algorithm.front != "none" else 0.0
        probes = work.disk.master_rows if algorithm.disk in ("scan", "seek") else work.misses
        matched = 1 - case.workload.orphans
        return {
            "front stage": self.take_in + asks * self.probe,
            "waiting": work.misses * (self.append + self.expire),
            "disk phase": probes * self.probe_master,
            "output": matched * self.emit,
        }


# No paper prints a cost. (HYBRIDJOIN's table 1 gives nanoseconds as the unit, and no number.) These
# follow from rates in section 4.2 of the MESHJOIN paper, a Pentium IV of 3 GHz:
#   1 / rate = disk share / M + c  for 6,000 rows per second at 4 MB and 26,000 at 40 MB gives
#   c = 24.2 us per stream row for take_in + append + expire + emit (3,235 at 2 MB; printed: 3,500).
#   At least 9,000 rows per second at 20 MB with 156 matches each: emit takes 0.37 us at most.
# Chosen, since the paper cannot tell: take_in 1 us; append and expire alike; probes of 0.1 us, that
# is 0.35 s of a cycle of 7 s: small, as the rate follows the memory closely where that is scarce.
PAPER_CPU = Cpu(
    take_in=1e-6, probe=0.1e-6, append=11.4e-6, expire=11.4e-6, probe_master=0.1e-6, emit=0.37e-6
)


def cpu_seconds(before: Stats, after: Stats, rows_per_page: float, cpu: Cpu) -> float:
    """What the work between two counts would cost a processor, by the operations of the papers.

        each row that came        take_in, and probe where there is a front stage
        each that it did not answer    append when it came, expire when it left
        each master row read      probe_master, where pages are asked against the waiting rows (the
                                  scans and the hybridjoin family)
        each row that left        probe_master, where it asks the pages (the others)
        each output row           emit

    Rows that the front stage knows to have no match are counted as waiting: there is no counter of
    them. So are rows with a NULL key.
    """
    algorithm = algorithm_named(after.algorithm)
    came = after.rows_in - before.rows_in
    hits = after.front_hits - before.front_hits
    answered = after.rows_matched + after.rows_unmatched
    left = answered - before.rows_matched - before.rows_unmatched - hits
    if algorithm.disk == "none":
        waited = left = 0
    else:
        waited = came - hits
    rows_read = (after.pages_read - before.pages_read) * rows_per_page
    asked = rows_read if algorithm.disk in ("scan", "seek") else left
    front = came if algorithm.front != "none" else 0
    return (
        came * cpu.take_in
        + front * cpu.probe
        + waited * cpu.append
        + left * cpu.expire
        + asked * cpu.probe_master
        + (after.rows_out - before.rows_out) * cpu.emit
    )


def charge_cpu(
    clock: ManualClock, before: Stats, after: Stats, rows_per_page: float, cpu: Cpu = PAPER_CPU
) -> float:
    """Let the clock go on by what the rows between two `join.stats` cost a processor; returns these
    seconds. `cpu_seconds` says what is charged for which row."""
    seconds = cpu_seconds(before, after, rows_per_page, cpu)
    clock.advance(seconds)
    return seconds
