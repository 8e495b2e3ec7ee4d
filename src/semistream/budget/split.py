"""How the memory of a join is divided among its parts, and the least that works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import BudgetError, MasterError
from ..spec import Algorithm, MasterFacts, Params
from .ledger import show_bytes
from .sizes import INTAKE_BYTES, STREAM_ROW, sample_bytes

LEAST_OUTPUT = 16 << 10
LEAST_BACKLOG = 16 << 10
LEAST_INTAKE = 8 << 10
LEAST_STREAM = 16 << 10
MOST_OUTPUT = 2 << 20
MOST_READ = 8 << 20
MOST_PIECE_ROWS = 1 << 15
SEEK_PAGES = 4
KAPPA = 47_000  # bytes a disk reads in the time of one seek; fits the published best buffers
MOST_MAPPED = 32 << 20  # mapped pages of one step: they cost no memory
COMFORT = 8 << 20  # a master that is held whole has no use for more than this besides


@dataclass(frozen=True)
class Split:
    """Bytes for each part."""

    output: int
    read: int  # what one read may bring; where the master is mapped it costs nothing
    front: int
    backlog: int
    piece_rows: int
    pool: int = 0  # cached pages
    held: int = 0  # ordered answers behind older rows
    sample: int = 0  # of the stream, where waiting rows have room enough
    stream: int = 0  # rows that have arrived and are not taken in yet, where load is shed

    @property
    def cache(self) -> int:
        """Cached rows or pages."""
        return self.front + self.pool


# --- which part gets how much ------------------------------------------------------------------


def whole_bytes(master: MasterFacts) -> int:
    """What it takes to hold a master whole: rows, table, and room to sort them on the way in."""
    return 3 * master.bytes + master.rows * (4 * 24 + 48) + (1 << 16)


def _to_hold_whole(master: MasterFacts) -> int:
    mapped = replace(master, mapped=True)
    return _total(master, _least(mapped, 64)) + whole_bytes(master)


def divide(masters: Sequence[MasterFacts], budget: int) -> list[int]:
    """Memory for each of several masters that are joined in one pass.

    The smallest are held whole, as long as that takes no more than an equal share. The others get
    the least that works, and share the rest by the square root of their bytes: the larger one has
    more to gain, but the first rows that are cached are the most popular ones of each.
    """
    least = [_total(master, _least(master, STREAM_ROW)) for master in masters]
    shares, left, large = list(least), budget, set(range(len(masters)))
    for i in sorted(large, key=lambda i: masters[i].bytes):
        whole = max(least[i], 2 * _to_hold_whole(masters[i]))
        if whole > left // len(large) or sum(shares) - shares[i] + whole > budget:
            break
        shares[i] = whole
        large.remove(i)
        left -= whole
        if not large:
            break
    extra = max(0, budget - sum(shares))
    roots = [math.sqrt(max(1, master.bytes)) for master in masters]
    for i in range(len(masters)):
        if large and i not in large:  # for larger batches
            shares[i] += min(COMFORT, extra // (4 * len(masters)))
    extra = max(0, budget - sum(shares))
    some = large or set(range(len(masters)))
    for i in some:
        shares[i] += int(extra * roots[i] / sum(roots[j] for j in some))
    return shares


def _least(master: MasterFacts, stream_row: int, shed: bool = False) -> Split:
    """The smallest parts that work: one page read, one row in, one row out."""
    page = master.max_page_bytes + 1024
    row = page * 2 if master.nested else page  # a bit for every part of a value, NULL or not
    return Split(
        output=LEAST_OUTPUT + row + 2 * stream_row,
        read=0 if master.mapped else 2 * page,
        front=0,
        backlog=LEAST_BACKLOG + 2 * stream_row,
        piece_rows=LEAST_INTAKE // INTAKE_BYTES,
        stream=LEAST_STREAM + 2 * stream_row if shed else 0,
    )


def _total(master: MasterFacts, split: Split) -> int:
    parts = split.output + split.read + split.front + split.backlog + split.stream + split.sample
    return master.resident_bytes + parts + split.piece_rows * INTAKE_BYTES


def least_bytes(
    algorithm: Algorithm, master: MasterFacts, stream_row: int, shed: bool = False
) -> int:
    """The least memory that works."""
    least = _total(master, _least(master, stream_row, shed))
    return least + (whole_bytes(master) if algorithm.front_facts.whole else 0)


def check_budget(
    algorithm: Algorithm, master: MasterFacts, budget: int, stream_row: int, shed: bool = False
) -> None:
    """Refuse what the master cannot do, and a budget that cannot work."""
    if algorithm.needs_index and not master.indexed:
        raise MasterError(
            f"{algorithm.name} needs an index on {list(master.key)}, which {master.name} has not; "
            'use algorithm="meshjoin", or build a store from it with Store.create'
        )
    least = least_bytes(algorithm, master, stream_row, shed)
    if budget < least:
        raise BudgetError(
            f"a budget of {show_bytes(budget)} is too small for {algorithm.name} on {master.name} "
            f"({master.rows} rows, {show_bytes(master.bytes)}); the least that works is {least} "
            f"bytes: give memory={least}",
            least,
        )


def split_memory(
    algorithm: Algorithm,
    master: MasterFacts,
    budget: int,
    stream_row: int,
    params: Params,
    ordered: bool = False,
    shed: bool = False,
) -> Split:
    check_budget(algorithm, master, budget, stream_row, shed)
    least, mapped = _least(master, stream_row, shed), master.mapped
    extra = budget - _total(master, least)  # beyond what it takes to work at all
    if algorithm.front_facts.whole:
        extra -= whole_bytes(master)
    output = least.output + min(extra // 8, MOST_OUTPUT)
    output = min(output, max(least.output, params.output_bytes or output))
    intake = min(extra // 8, MOST_PIECE_ROWS * INTAKE_BYTES)
    asked = params.read_bytes or read_size(algorithm, master, budget)
    read = least.read + (0 if mapped else _for_reads(algorithm, params, extra, asked))
    held = extra // 4 if ordered else 0
    left = extra - (output - least.output) - intake - (read - least.read) - held
    front = int(_share(algorithm, params) * left)
    stream = (left - front) // 3 if shed else 0
    pool = 0
    if algorithm.pools_pages:
        front, pool = 0, front if not mapped or algorithm.disk_facts.pools_mapped else 0
    rows = least.piece_rows + intake // INTAKE_BYTES
    backlog = least.backlog + left - front - stream - (0 if mapped else pool)
    sample = sample_bytes(backlog, params.sketch)
    return Split(
        output=output,
        read=min(read or MOST_MAPPED, max(master.max_page_bytes + 1024, asked)),
        front=front,
        backlog=backlog - sample,
        piece_rows=max(1, min(params.piece_rows or rows, rows)),
        pool=pool,
        held=held,
        sample=sample,
        stream=least.stream + stream,
    )


def _for_reads(algorithm: Algorithm, params: Params, extra: int, asked: int) -> int:
    """What reads get beyond the least. Where they are of one size they take no more than that, and
    what was asked for gets up to a half."""
    if not algorithm.disk_facts.one_size:
        return min(extra // 8, MOST_READ)
    return min(asked, extra // 2 if params.read_bytes is not None else extra // 8)


@dataclass(frozen=True)
class Division:
    """How the memory that parts may take from each other is divided, in place of the plan's way."""

    share: float  # cached rows or pages, of what reads leave to them and to waiting rows
    read: int  # bytes that one read may bring


def divided(
    split: Split,
    master: MasterFacts,
    budget: int,
    widest: int,
    shed: bool,
    wanted: Division,
    cached: int | None = None,
) -> Split:
    """The same budget in another division; output, intake and the like stay as they are, and so do
    `cached` bytes where the cache cannot change."""
    least, mapped = _least(master, widest, shed), master.mapped
    fixed = _total(master, replace(split, read=0, front=0, backlog=0)) + split.held
    movable = budget - fixed - least.backlog - (cached or 0)
    page = master.max_page_bytes + 1024
    read = max(page, min(wanted.read, movable // 2 if not mapped else MOST_MAPPED))
    reads = 0 if mapped else max(least.read, read)
    cache = int(wanted.share * max(0, movable - reads)) if cached is None else cached
    if split.pool and mapped:  # pages of a map cost nothing
        return replace(split, read=read, backlog=budget - fixed - reads)
    backlog = budget - fixed - reads - cache
    if split.pool:
        return replace(split, read=read, pool=cache, backlog=backlog)
    return replace(split, read=read, front=cache, backlog=backlog)


def _share(algorithm: Algorithm, params: Params) -> float:
    """Of what is left, for cached rows or pages."""
    if algorithm.cache_knob is None:
        return 0.0
    asked: float | None = getattr(params, algorithm.cache_knob)
    return algorithm.share if asked is None else asked


def read_size(algorithm: Algorithm, master: MasterFacts, budget: int) -> int:
    """What one read should bring.

    Scans: sqrt(K^2 + K M) - K for a memory of M bytes and a device that reads K bytes in the time
    of a seek, so it does not depend on the master; mapped pages cost no memory, and the more of
    them the fewer steps. meshjoin ties it to the master all the same: a k-th of it for a whole k.
    hybridjoin's family: a few pages around the looked up key. Others: all that memory allows.
    """
    if algorithm.disk_facts.blocks:
        return SEEK_PAGES * (master.max_page_bytes + 1024)
    if not algorithm.disk_facts.scans:
        return MOST_MAPPED
    best = MOST_MAPPED if master.mapped else int(math.sqrt(KAPPA * (KAPPA + budget)) - KAPPA)
    if algorithm.equal_reads:
        return -(-master.bytes // max(1, round(master.bytes / max(1, best))))
    return best
