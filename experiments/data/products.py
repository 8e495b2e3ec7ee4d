"""The usual master: a store of products, made once and kept in a folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lib import workload
from benchmarks.lib.report import count_text, say
from experiments.data.generate import kept_rows
from semistream.spec import ALGORITHMS

PAGE_BYTES = 64 << 10  # a store's default
SMALL_PAGE = 8 << 10  # the papers' pages, for those who read one page per row
ROW_BYTES = 120  # of a master row in the papers, and about that here
INDEX_BYTES = 24  # per page, in memory while a store is open


def products(folder: Path, rows: int, page_bytes: int = PAGE_BYTES) -> Path:
    """`rows` products with keys 0 .. rows - 1, one row each, about 120 bytes."""
    path = folder / f"products-{rows}-{page_bytes}"
    if not path.exists():
        say(f"  making a master of {count_text(rows)} rows ...")
    return kept_rows(path, rows, workload.master_table, workload.KEY, page_bytes)


def products_for(algorithm: str, folder: Path, rows: int, memory: int) -> Path:
    """With the pages that suit the algorithm: small ones for look-ups row by row, where the index
    of so many pages takes little of the memory."""
    small = ALGORITHMS[algorithm].disk == "lookup"
    index = rows * ROW_BYTES / SMALL_PAGE * INDEX_BYTES
    return products(folder, rows, SMALL_PAGE if small and index < memory / 10 else PAGE_BYTES)


def share_of(rows: int, share: float) -> int:
    """Bytes that are this share of a master with so many rows."""
    return round(share * rows * ROW_BYTES)
