"""What the laws of disk phases are asked for, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...errors import SpecError
from . import zipf
from .numbers import require_at_least, require_skew


@dataclass(frozen=True)
class DiskWork:
    """Work of the disk phase per row of the stream, rows that the front stage answers included."""

    reads: float  # separate requests
    pages: float  # pages brought
    bytes: float  # bytes brought
    master_rows: float  # master rows probed against waiting rows; 0 where pages are searched
    waits: float  # stream rows that come while an average row of the disk phase waits
    jumps: float  # of the reads, those that do not begin where the one before ended


@dataclass(frozen=True)
class Setting:
    """A master, a stream and the sizes of a join, as plain numbers."""

    rows: float  # of the master
    pages: float  # of the master
    page_bytes: float
    waiting: float  # slots for waiting rows
    skew: float = 1.0  # Zipf exponent of the stream
    ordered: bool = False  # whether pages lie in the order of popularity
    cached: float = 0.0  # keys that the front stage answers
    read_pages: float = 1.0  # pages of one read: a scan's, a block's, the most of a sweep's
    gap: float = 0.0  # unneeded pages a sweep reads along to join two reads
    pool_pages: float = 0.0  # pages that inlj or ssij keep
    release: str = "cycle"  # scans: a row leaves after a whole cycle, or at its match
    mapped: bool = False  # whether pages are mapped rather than read
    in_order: bool = False  # whether answers are held until all older rows have theirs
    spans: float = 0.0  # ranges of keys that pages share; 0: every page has its own

    def __post_init__(self) -> None:
        require_skew(self.skew)
        for name in ("rows", "pages", "waiting", "read_pages"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("page_bytes", "cached", "gap", "pool_pages", "spans"):
            require_at_least(name, getattr(self, name), 0)
        if self.pages > self.rows:
            raise SpecError(
                f"pages is {self.pages:g} for rows {self.rows:g}; a page has at least one row"
            )

    @cached_property
    def missed(self) -> float:
        """The share of the stream that the front stage leaves to the disk phase."""
        return max(0.0, 1 - zipf.share(self.cached, self.rows, self.skew))

    @property
    def in_parts(self) -> bool:
        """Whether a sweep takes part after part of the waiting rows."""
        return not (self.mapped or self.in_order)

    @property
    def page_rows(self) -> float:
        return self.rows / self.pages
