"""What each disk phase does per stream row, for predictions: one class per disk word.

    Rhythm    how often a phase steps, and in how many pieces batches are taken in
    Phase     slots, pages, operations and calls; how often follows from its law (laws/family.py)

The base classes describe a phase that answers all that waits in one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..budget import CHUNK_BYTES, PAGES_FILL, STREAM_ROW, Split
from ..spec import Algorithm, MasterFacts, Workload
from .laws import DiskWork, Setting, rounds, ssij, swept, zipf

if TYPE_CHECKING:
    from .work import Case, Work

GUESSES = 3.0  # pieces per read of a scan that does not know how many rows will miss: 1 to 7
PIECES = 64  # that are looked at one by one


def fills(batch: float, misses: float, slots: float) -> int:
    """How often a batch fills the slots, where all rows are answered before it ends."""
    return max(1, math.ceil(batch * misses / max(1.0, slots)))


def width(stream: Workload) -> int:
    """Bytes that a waiting row is planned with: its own, and a bit per column for NULL."""
    return stream.row_bytes + stream.columns // 8 + 1


# --- steps and pieces ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Rhythm:
    """Steps and pieces per stream row."""

    mapped: bool
    batch: int  # rows that come at a time
    piece: int  # rows that are taken in at a time, at most
    slots: int
    misses: float  # share of rows that the front stage does not answer
    reads: float = 0.0  # per stream row
    at_once: float = 0.0  # share of rows that ssij's cached pages answer
    part_rows: float = 0.0  # that a step of a sweep in parts answers; 0: all that wait

    @cached_property
    def steps(self) -> float:
        """Calls of the disk phase per stream row."""
        return 0.0 if self.misses <= 0 else self._steps

    @property
    def _steps(self) -> float:
        return self.misses * (1 - self.at_once) / max(1.0, self._freed)

    @property
    def _freed(self) -> float:
        """Slots that one step makes free."""
        return self.slots

    @property
    def _refilled(self) -> float:
        """Slots that are free after a step, where nothing came in between."""
        return self._freed

    @property
    def _most(self) -> float:
        """Slots that are in use at a time."""
        return self.slots

    @property
    def _least(self) -> float:
        """Fewer free slots than this are not filled."""
        return self.slots / 16

    def _after_batch(self, free: float) -> float:
        """Free slots when a batch ends."""
        return free

    @property
    def pieces(self) -> float:
        """Parts that batches are taken in by, per stream row."""
        batch, piece = max(1, self.batch), max(1, self.piece)
        if self.steps <= 0:
            return math.ceil(batch / piece) / batch
        return self._pieces(batch, piece)

    def _pieces(self, batch: float, piece: float) -> float:
        most, least, freed = self._most, self._least, self._refilled
        misses = self.misses * (1 - self.at_once)
        free, left, rows = 0.0, batch, 0.0
        for _ in range(PIECES):
            if free < least:  # one step, or as many as it takes
                free = min(most, free + max(freed, least - free + freed / 2))
            taken = min(piece, left, max(1.0, free))
            rows += taken
            free -= misses * taken
            left -= taken
            if left <= 0:
                left = batch
                free = self._after_batch(free)
        return PIECES / rows


class SweepRhythm(Rhythm):
    @property
    def _freed(self) -> float:
        return self.part_rows or self.slots * swept(self.misses)

    @property
    def _refilled(self) -> float:
        return self.part_rows or self.slots  # all, those still free too


class ScanRhythm(Rhythm):
    @property
    def _steps(self) -> float:
        return self.reads

    def _pieces(self, batch: float, piece: float) -> float:
        often = GUESSES if self.misses < 1 else 1.0
        return max(often * self.steps, 1 / piece + self.steps / 2) + 1 / batch


class SeekRhythm(Rhythm):
    @property
    def _steps(self) -> float:
        return super()._steps if self.mapped else self.reads

    @property
    def _freed(self) -> float:
        read = self.misses / max(1e-12, self.reads)
        return self.slots / 4 + read / 2 if self.mapped else read


class LookupRhythm(Rhythm):
    @property
    def _steps(self) -> float:
        return fills(self.batch, self.misses, self.slots) / max(1, self.batch)

    @property
    def _least(self) -> float:
        return 1.0

    def _after_batch(self, free: float) -> float:
        return self._most


class PagesRhythm(Rhythm):
    @property
    def _freed(self) -> float:
        return PAGES_FILL / 2 * self.slots

    @property
    def _most(self) -> float:
        return PAGES_FILL * self.slots

    @property
    def _least(self) -> float:
        # It fills them all, but cached pages answer rows only by the thousand, so that few of the
        # last ones leave again.
        return self.slots / 20


# --- what is done -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """Something that costs time: how often per stream row, on how many bytes."""

    part: str
    name: str
    count: float
    size: float = 1.0


class Phase:
    """A disk phase in numbers."""

    cost = "sweep"  # its word in the names of measured costs, as in "step sweep"
    rhythm: type[Rhythm] = Rhythm
    joins_reads = True  # pages that are not far from each other are brought by one request
    finds_anywhere = False  # rows of the master are found in no order

    def slots_in_use(self, case: Case, split: Split, slots: int, guesses: bool) -> float:
        """Slots that rows can wait in."""
        return slots

    def answered_at_once(self, case: Case, split: Split, slots: int) -> float:
        """Share of rows that pages in memory answer when they come."""
        return 0.0

    def part_rows(self, case: Case, setting: Setting) -> float:
        """Rows that one step answers where it takes a part of them; 0: all."""
        return 0.0

    def as_read(
        self, disk: DiskWork, steps: float, master: MasterFacts, gap_bytes: float
    ) -> DiskWork:
        """The work where pages are read, which a device may do in fewer requests."""
        return disk

    def touched(self, case: Case, split: Split, work: Work) -> float:
        """Pages of a mapped master that are used; `work` has those that would be read."""
        return work.disk.pages

    def searching(self, work: Work, table: float, reach: float) -> Iterator[Operation]:
        """How rows are found; `table` are the bytes of waiting rows, `reach` those of master rows
        that most of them ask for."""
        yield Operation("disk phase", "block", work.disk.reads)
        yield Operation("disk phase", "seek", work.disk.master_rows, table)

    def calls(self, case: Case, split: Split, work: Work) -> float:
        """Calls of the master."""
        return work.disk.reads

    def answers(self, case: Case, split: Split, work: Work) -> float:
        """How often some rows are answered out of pages that were read: after each call."""
        return self.calls(case, split, work)


class Sweeping(Phase):
    rhythm = SweepRhythm

    def part_rows(self, case: Case, setting: Setting) -> float:
        if case.master.by_key or not setting.in_parts or setting.missed <= 0:
            return 0.0
        rows, parts = rounds(setting)
        return rows / parts

    def calls(self, case: Case, split: Split, work: Work) -> float:
        """A sweep asks for as many pages at once as its buffer has room for."""
        disk = work.disk
        if case.master.by_key:
            return disk.reads
        return min(disk.pages, max(disk.bytes / max(1, split.read), work.steps))


class Scanning(Phase):
    cost = "scan"
    rhythm = ScanRhythm

    def slots_in_use(self, case: Case, split: Split, slots: int, guesses: bool) -> float:
        """Before each read some rows come in as a chunk, and chunks cost bytes: small ones are
        brought together once that would give back a 32nd of all. (Where rows leave out of turn the
        law says how many slots that keeps from being used.)"""
        stream = case.workload
        if case.params.release == "match" or case.master.rows == 0:
            return slots
        chunks = max(1.0, case.master.bytes / max(1, split.read)) * (GUESSES if guesses else 1.0)
        lost = min(chunks * (CHUNK_BYTES + 32 * stream.columns), split.backlog / 32)
        data = slots * width(stream) + 2 * max(STREAM_ROW, stream.row_bytes)
        return float(np.clip((data - lost) / stream.row_bytes, 1.0, slots))

    def searching(self, work: Work, table: float, reach: float) -> Iterator[Operation]:
        yield Operation("disk phase", "scan", work.disk.master_rows, table)


class Seeking(Phase):
    cost = "seek"
    rhythm = SeekRhythm


class LookingUp(Phase):
    cost = "lookup"
    rhythm = LookupRhythm
    finds_anywhere = True

    def touched(self, case: Case, split: Split, work: Work) -> float:
        """Each page is used once for all rows of a step."""
        if work.steps <= 0:
            return work.disk.pages
        master, stream = case.master, case.workload
        pages = max(1, master.pages)
        rows, cached = max(1, master.rows, pages), min(work.cached, master.rows - 1.0)
        together = work.misses / work.steps
        skip = max(0.0, cached)
        return work.steps * float(
            zipf.expected_pages(together, rows, pages, stream.skew, stream.ordered, skip)
        )

    def searching(self, work: Work, table: float, reach: float) -> Iterator[Operation]:
        yield Operation("disk phase", "look", work.misses, reach)

    def answers(self, case: Case, split: Split, work: Work) -> float:
        """For each row of its own."""
        return self.calls(case, split, work) if case.master.by_key else work.misses


class Paging(Phase):
    """ssij."""

    cost = "plan"  # so called in files that machines were measured into
    rhythm = PagesRhythm
    joins_reads = False

    def answered_at_once(self, case: Case, split: Split, slots: int) -> float:
        master, stream = case.master, case.workload
        pages, pool = max(1, master.pages), split.pool / max(1, master.page_bytes)
        rows = max(1, master.rows, pages)
        return ssij.solve(slots, rows, pages, stream.skew, stream.ordered, pool).cached_share

    def as_read(
        self, disk: DiskWork, steps: float, master: MasterFacts, gap_bytes: float
    ) -> DiskWork:
        """Page after page is asked for, in file order: some go on where the last one ended, and
        small gaps are read through."""
        pages = disk.pages / max(1e-12, steps)
        gap = max(0, math.ceil(gap_bytes / max(1, master.page_bytes)) - 1)
        reads, brought = zipf.expected_reads(min(pages, master.pages), master.pages, gap)
        each = steps * brought
        return replace(disk, jumps=steps * reads, bytes=each * master.page_bytes)

    def touched(self, case: Case, split: Split, work: Work) -> float:
        """Those of its cache again in every step."""
        return work.disk.pages + work.steps * _kept(max(1, case.master.pages), case, split)

    def searching(self, work: Work, table: float, reach: float) -> Iterator[Operation]:
        yield Operation("disk phase", self.cost, work.steps * work.waiting)

    def answers(self, case: Case, split: Split, work: Work) -> float:
        """Also out of each page that it keeps."""
        return work.disk.pages + work.steps * _kept(case.master.pages, case, split)


def _kept(pages: int, case: Case, split: Split) -> float:
    """Pages in ssij's cache."""
    return min(pages, split.pool / max(1, case.master.page_bytes))


_PHASES: Mapping[str, Phase] = {
    "sweep": Sweeping(),
    "scan": Scanning(),
    "seek": Seeking(),
    "lookup": LookingUp(),
    "pages": Paging(),
}
_OTHER = Phase()


def phase_of(algorithm: Algorithm) -> Phase:
    return _PHASES.get(algorithm.disk, _OTHER)
