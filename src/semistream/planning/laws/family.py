"""The cost laws: what each disk phase asks of the disk, per row of the stream.

No paper prints these. They describe the disk phases of this package (docs/algorithms.md) with all
slots for waiting rows in use, on a stream that is Zipf-distributed over the rows of the master:

    sweep    all waiting rows are answered at once, each needed page is read once; where pages are
             read rather than mapped part after part of them, see `semistream.planning.laws.sweeps`
    scan     a slot is used once per cycle over the master; up to twice with release="match"
    seek     one read answers what the renewal law says, see `semistream.planning.laws.renewal`
    lookup   a row is a read, unless its page is the last one or in the pool (Che's approximation)
    pages    see `semistream.planning.laws.ssij`

Keys that the front stage holds are taken to be the most popular ones; xhybridjoin's are its first
pages, popular or not. Rows whose key the master lacks are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...errors import SpecError
from ...spec import ALGORITHMS, FRONT_FACTS, Algorithm
from . import renewal, ssij, zipf
from .numbers import as_floats
from .setting import DiskWork, Setting
from .sweeps import sweep_work

SOUGHT = {False: 0.88, True: 0.82}
"""Slots in use at a lookup, by whether the master is mapped: 0.86 to 0.92 and 0.77 to 0.87 measured
for stream rows of 17 to 129 bytes. Slots are refilled when 1/16 or 1/4 of them is free, and bytes
of rows that have left keep some from being used until enough of their chunk has gone."""

MATCHED = 0.84
"""The same for a scan with release="match": 0.81 to 0.87, in cycles of 13 reads or more."""

GUESSED = 15 / 16
"""A scan behind a front stage keeps a 16th of its slots for more misses than it expects: 0.90 to
0.96 measured."""


def has_law(algorithm: Algorithm) -> bool:
    """Whether its costs can be predicted: its disk phase has a law, or there is no disk phase."""
    known = algorithm.disk in LAWS or algorithm.front_facts.whole
    return known and algorithm.front in FRONT_FACTS


def require_law(algorithm: Algorithm) -> None:
    if not has_law(algorithm):
        known = ", ".join(name for name, other in ALGORITHMS.items() if has_law(other))
        raise SpecError(
            f"{algorithm.name} has no cost law, so nothing can be predicted for it; name it in a "
            f"join to use it, or ask for one of {known}"
        )


def disk_work(algorithm: str, setting: Setting) -> DiskWork:
    """The disk work of the named algorithm; the pool counts for inlj and ssij, the cache not for
    those that have none."""
    member = ALGORITHMS.get(algorithm)
    if member is None or member.disk not in LAWS:
        known = ", ".join(name for name, other in ALGORITHMS.items() if other.disk in LAWS)
        raise SpecError(f"algorithm={algorithm!r} has no model; choose one of {known}")
    front = member.front_facts
    if not front.answers:
        setting = replace(setting, cached=0.0)
    if not member.pools_pages:
        setting = replace(setting, pool_pages=0.0)
    if setting.missed <= 0:
        return DiskWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if front.pins and not setting.ordered:
        return _pinned_anywhere(setting)
    return LAWS[member.disk](setting)


# --- the disk phases --------------------------------------------------------------------------


def scan_work(setting: Setting) -> DiskWork:
    """meshjoin, rmeshjoin and, where the front stage makes misses a guess, cmeshjoin."""
    used = setting.waiting * (GUESSED if setting.cached > 0 else 1.0)
    reads = float(np.ceil(setting.pages / setting.read_pages))
    per_cycle = used
    if setting.release == "match":
        used *= MATCHED
        # A row that matches the n-th read of k stays for n whole reads: (k + 1)/2 on average.
        per_cycle = used * max(1.0, _uses_of_a_slot(setting) * reads / (reads + 1))
    each = setting.missed / per_cycle
    return DiskWork(
        reads=reads * each,
        pages=setting.pages * each,
        bytes=setting.pages * each * setting.page_bytes,
        master_rows=setting.rows * each,
        waits=used / setting.missed,
        jumps=each,
    )


def seek_work(setting: Setting) -> DiskWork:
    """hybridjoin, chybridjoin, and xhybridjoin on a master in the order of popularity."""
    held = max(1.0, SOUGHT[setting.mapped] * setting.waiting)
    blocks = max(1.0, setting.pages / setting.read_pages)
    state = renewal.solve(held, setting.rows, blocks, setting.skew, setting.ordered, setting.cached)
    each = setting.missed / state.rows_per_read
    pages = setting.pages / blocks
    return DiskWork(
        reads=each,
        pages=each * pages,
        bytes=each * pages * setting.page_bytes,
        master_rows=each * pages * setting.page_rows,
        waits=held / setting.missed,
        jumps=each,
    )


def lookup_work(setting: Setting) -> DiskWork:
    """inlj and cinlj: one page per row, unless the row before asked for it or it is in the pool."""
    read = pool_misses(setting) if setting.pool_pages >= 1 else 1 - _same_page(setting)
    each = setting.missed * read
    return DiskWork(each, each, each * setting.page_bytes, 0.0, 0.0, each)


def pages_work(setting: Setting) -> DiskWork:
    """ssij: the pages that most rows wait for, each by a read of its own."""
    found = ssij.solve(
        setting.waiting,
        setting.rows,
        setting.pages,
        setting.skew,
        setting.ordered,
        setting.pool_pages,
    )
    pages, waits = found.pages_per_row, found.waits
    return DiskWork(pages, pages, pages * setting.page_bytes, 0.0, waits, pages)


def _pinned_anywhere(setting: Setting) -> DiskWork:
    """Pinned pages that are not the popular ones answer as much as any other pages do."""
    kept = min(1.0, setting.cached / setting.rows)
    if kept >= 1:
        return DiskWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    left = 1 - kept
    rest = replace(
        setting,
        rows=max(1.0, setting.rows * left),
        pages=max(1.0, setting.pages * left),
        cached=0.0,
    )
    work = seek_work(rest)
    return DiskWork(
        work.reads * left,
        work.pages * left,
        work.bytes * left,
        work.master_rows * left,
        work.waits / left,
        work.jumps * left,
    )


LAWS: Mapping[str, Callable[[Setting], DiskWork]] = {  # by the word of the disk phase
    "sweep": sweep_work,
    "scan": scan_work,
    "seek": seek_work,
    "lookup": lookup_work,
    "pages": pages_work,
}


# --- parts --------------------------------------------------------------------------------------


def _uses_of_a_slot(setting: Setting) -> float:
    """How many rows use a slot in one cycle where a row leaves at its match.

    Rows come evenly, and a row waits for half a cycle on average: two. In the order of popularity
    nearly all wait for the first pages, and before these are read nearly all that came in the
    cycle are there: 1/(1 - x), x being the mean position of what is asked for, from 0 to 1.
    """
    if not setting.ordered:
        return 2.0
    position = zipf.mean_rank(setting.rows, setting.skew, setting.cached) / setting.rows
    return min(2.0, 1 / (1 - min(position, 0.5)))


def _same_page(setting: Setting) -> float:
    """The chance that two rows of the disk phase ask for the same page."""
    rows, pages, skew, cached = setting.rows, setting.pages, setting.skew, setting.cached
    if setting.ordered:
        counts, shares = zipf.page_shares(rows, pages, skew, cached)
        return float(np.sum(counts * shares**2))
    same_key = zipf.same_key(rows, skew, cached)
    return same_key + (1 - same_key) * (setting.page_rows - 1) / max(1.0, rows - 1)


def pool_misses(setting: Setting) -> float:
    """The share of lookups whose page is not among the ``pool_pages`` last used ones.

    Che's approximation: a page stays in the pool for T lookups after its last use, T being such
    that T lookups ask for as many different pages as the pool has. The lookups that miss are those
    that ask for a page which the T before them did not: the slope of expected pages at T.
    """
    if setting.pool_pages >= setting.pages:
        return 0.0
    master = (setting.rows, setting.pages, setting.skew, setting.ordered, setting.cached)
    low, high = setting.pool_pages, 50 * setting.rows ** max(1.0, setting.skew)
    for _ in range(3):
        grid = np.geomspace(low, high, 24)
        asked = zipf.expected_pages(grid, *master)
        at = int(np.clip(np.searchsorted(asked, setting.pool_pages), 1, len(grid) - 1))
        low, high = float(grid[at - 1]), float(grid[at])
    around = as_floats([low, high])
    few, many = zipf.expected_pages(around, *master)
    return float(np.clip((many - few) / max(high - low, 1e-9), 0.0, 1.0))
