"""What sweepjoin asks of the disk, per row of the stream: see `semistream.planning.laws.family`."""

from __future__ import annotations

import numpy as np

from ...budget import SWEEP_PARTS
from . import zipf
from .numbers import as_floats
from .setting import DiskWork, Setting

ROLLED = 0.985
"""Of the slots that a sweep could use, those that one in parts does: bytes of rows that have left
keep some from being used for a while."""


def sweep_work(setting: Setting) -> DiskWork:
    """sweepjoin: one ordered sweep over the pages that the waiting rows need."""
    filled, parts = swept(setting.missed) * setting.waiting, 1.0
    if setting.in_parts:
        filled, parts = rounds(setting)
    reads, pages = _sweep(setting, filled)
    # A run of pages is cut where one read is full, and where a part ends: with a read that is half
    # full on average, or all of the part.
    runs = reads
    full = pages / parts / setting.read_pages
    cuts = parts * max(1.0, full + (0.5 if parts > 1 else 0.0)) - 1
    reads += cuts * max(0.0, 1 - reads / max(pages, 1e-9))
    each = setting.missed / filled
    return DiskWork(
        reads=reads * each,
        pages=pages * each,
        bytes=pages * each * setting.page_bytes,
        master_rows=0.0,
        waits=filled / 2 / setting.missed,
        jumps=runs * each,
    )


def rounds(setting: Setting) -> tuple[float, float]:
    """(rows that a sweep in parts answers in one round over the master, parts of a round).

    A part that was answered k parts ago has k parts' worth of new rows. So with m parts, each of p
    rows, (m + 1)/2 p slots are in use when one comes: that gives m, and m p rows in a round. A
    part is a page at least, or all pages that share a range of keys, and a page that more rows ask
    for than fit into a part is one alone: all of its rows and half of the others wait when it
    comes."""
    used = ROLLED * swept(setting.missed) * setting.waiting
    parts = min(2.0 * SWEEP_PARTS - 1, setting.spans or setting.pages)
    hottest = _hottest(setting)
    if hottest * parts <= 1:
        return 2 * used * parts / (parts + 1), parts
    rows = 2 * used / (1 + hottest)
    return rows, 1 + (1 - hottest) * rows * SWEEP_PARTS / used


def swept(missed: float) -> float:
    """Slots in use when a sweep comes: all where all rows miss. Else pieces become smaller by what
    each leaves free, and it comes when less than a 16th is: between that and (1 - missed)/16."""
    return 1.0 if missed >= 1 else 1 - (2 - missed) / 32


def _sweep(setting: Setting, filled: float) -> tuple[float, float]:
    """(separate reads, pages read) of one sweep for so many waiting rows."""
    master = (setting.rows, setting.pages, setting.skew)
    if not setting.ordered:
        needed = zipf.expected_pages(filled, *master, False, setting.cached)
        return zipf.expected_reads(needed, setting.pages, setting.gap)
    # In the order of popularity neighbours are needed alike: a read begins at a needed page after
    # more than `gap` others, and a gap of j pages is read along between two needed ones.
    counts, shares = zipf.page_shares(*master, setting.cached)
    chance = zipf.seen(as_floats(filled), shares)
    others = 1 - chance
    begins = np.sum(counts * chance * others ** (setting.gap + 1))
    begins += 1 - others[0] ** (setting.gap + 1)  # the first has nothing before it
    lengths = np.arange(1, setting.gap + 1)
    along = np.sum(lengths[:, None] * others ** lengths[:, None], axis=0)
    pages = np.sum(counts * (chance + chance**2 * along))
    return max(1.0, float(begins)), float(pages)


def _hottest(setting: Setting) -> float:
    """Of the rows that the front stage leaves, the share that asks for the most popular page. Of
    rows that lie anywhere no page has two popular ones."""
    top = setting.cached + (setting.page_rows if setting.ordered else 1.0)
    asked = zipf.share(min(top, setting.rows), setting.rows, setting.skew)
    return float(max(0.0, asked - 1 + setting.missed) / setting.missed)
