"""The nouns: what changes results (JoinSpec), what changes speed only (Params), and the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import SpecError

_HOW = {"inner": "inner", "left": "left", "semi": "semi", "anti": "anti"}
_HOW |= {"leftouter": "left", "left_outer": "left", "leftsemi": "semi", "left_semi": "semi"}
_HOW |= {"leftanti": "anti", "left_anti": "anti"}


class Condition(Protocol):
    """Columns that it needs, and which pairs satisfy it. NULL does not."""

    @property
    def stream_columns(self) -> tuple[str, ...]: ...

    @property
    def master_columns(self) -> tuple[str, ...]: ...

    def mask(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class JoinSpec:
    """The question: everything that the result depends on, besides the data."""

    on: tuple[tuple[str, str], ...]  # (stream column, master column)
    how: str
    columns: tuple[str, ...] | None  # of the master; None: all but the key
    suffix: str | None  # for master columns whose name the stream has too
    condition: Condition | None = None  # besides the equality of `on`, or instead of it
    ordered: bool = False  # output in the order of the stream
    matched: str | None = None  # left: a last column that tells rows with a match from others


@dataclass(frozen=True)
class Params:
    """Knobs that change speed and never results. None: chosen for the budget."""

    front_share: float | None = None  # of the budget, for the front stage
    output_bytes: int | None = None  # the most one output batch holds
    read_bytes: int | None = None  # what one read of the disk phase brings
    piece_rows: int | None = None  # stream rows taken in at a time
    threshold: int = 2  # sightings before a key group is cached
    release: str = "cycle"  # scans: a row leaves after a whole cycle, or at its match
    lookup: float = 1.0  # hybridjoin family: which waiting row is looked up, 1 oldest, 0 newest
    pinned_probe: str = "stream"  # xhybridjoin: who asks whom, the stream or the pinned rows
    page_pool: float = 0.0  # inlj: share of the budget for a pool of pages
    sketch: bool = True  # remember some of the stream, for `workload`

    def __post_init__(self) -> None:
        _one_of("release", self.release, ("cycle", "match"))
        _one_of("pinned_probe", self.pinned_probe, ("stream", "waiting"))
        for name, most in (("front_share", 1.0), ("lookup", 1.0), ("page_pool", 0.9)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise SpecError(f"{name}={value!r} is not between 0 and {most:g}")


@dataclass(frozen=True)
class Workload:
    """What is known of a stream, in numbers. The defaults are what is assumed where nothing is."""

    skew: float = 1.0  # Zipf exponent of the popularity of keys, 0: all alike
    skew_error: float | None = None  # standard error of `skew`; None: it is an assumption
    row_bytes: int = 20  # of a stream row in Arrow memory
    columns: int = 3  # of the stream
    batch_rows: int = 100_000  # that come at a time
    orphans: float = 0.0  # share of rows whose key the master does not have
    rows: int | None = None  # of the sample, or that have come so far
    distinct: int | None = None  # keys among these
    burstiness: float | None = None  # variance over mean of rows per arrival, 0: even, 1: Poisson
    ordered: bool = False  # the master's pages are in the order of popularity
    popularity: tuple[tuple[int, float], ...] = ()  # (keys, share of the rows they have), measured

    def __post_init__(self) -> None:
        for name, least, most in (("skew", 0, 10), ("orphans", 0, 1), ("row_bytes", 1, 1 << 40),
                                  ("columns", 0, 1 << 20), ("batch_rows", 1, 1 << 50)):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value <= most:
                raise SpecError(f"{name}={value!r} is not a number between {least} and {most}")
        object.__setattr__(self, "skew", float(self.skew))
        object.__setattr__(self, "orphans", float(self.orphans))
        object.__setattr__(self, "popularity", tuple(map(tuple, self.popularity)))


@dataclass(frozen=True)
class MasterFacts:
    """What is known of a master, in numbers and words only, for predictions about it."""

    name: str
    key: tuple[str, ...]
    rows: int
    bytes: int
    pages: int
    page_bytes: int  # of a page on average
    max_page_bytes: int
    row_bytes: int  # of a row on average
    columns: int
    text_columns: int  # of these, columns whose values differ in width
    indexed: bool
    unique: bool  # no two rows share a key
    ranges: bool  # pages can be sought by key
    scans: bool  # all rows can be read in some order, a part at a time
    by_key: bool  # rows of many keys are fetched at once, as from a database
    ages: bool  # rows must not be kept for good
    mapped: bool  # reading it allocates nothing
    overlapping: bool  # the keys of neighbouring pages may overlap
    in_key_order: bool  # pages are in the order of keys, from the first to the last
    resident_bytes: int  # memory that reading it takes for good, such as an index
    spans: int = 0  # ranges of keys that pages share; 0: every page has its own
    nested: bool = False  # some column's values have parts: lists, structs, maps


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SpecError(f"{name}={value!r} does not exist; choose one of {', '.join(known)}")


@dataclass(frozen=True)
class DiskFacts:
    """What is known of a disk phase below it: to divide memory, to refuse masters, to predict. Its
    class has the same facts; the defaults fit one that sorts its rows and finds them by an index.
    """

    linked: bool = False  # waiting rows are found by their code
    answers_at_once: bool = False  # rows are answered in the call that brings them
    scans: bool = False  # reads the whole master, again and again
    blocks: bool = False  # reads a block of pages around a waiting row, and may answer it alone
    ranges: bool = False  # finds pages by ranges of keys, which the master must have
    borrows: bool = False  # a sleeping front stage's memory, for more waiting rows
    goes_round: bool = False  # where pages are read: answers part after part of what waits
    fetch_word: str = ""  # the phase in its place where the master fetches many keys at once
    pool_knob: str = ""  # the Params that says how much a pool of pages gets, if there is one
    pools_mapped: bool = False  # pages of a mapped master count as well

    @property
    def one_size(self) -> bool:
        """Whether its reads are all of one size, which can be tuned."""
        return self.scans or self.blocks


@dataclass(frozen=True)
class FrontFacts:
    """What is known of a front stage below it."""

    learns: bool = False  # caches the keys that come often
    pins: bool = False  # holds the first pages
    whole: bool = False  # holds the whole master: nothing waits

    @property
    def answers(self) -> bool:
        """Whether it answers any rows."""
        return self.learns or self.pins or self.whole


DISK_FACTS: dict[str, DiskFacts] = {  # disk phases enter themselves, too (disk/base.py)
    "sweep": DiskFacts(borrows=True, goes_round=True, fetch_word="fetch"),
    "scan": DiskFacts(linked=True, scans=True),
    "seek": DiskFacts(linked=True, blocks=True, ranges=True),
    "lookup": DiskFacts(answers_at_once=True, fetch_word="fetch_now", pool_knob="page_pool"),
    "pages": DiskFacts(ranges=True, pool_knob="front_share", pools_mapped=True),
    "none": DiskFacts(),
}
FRONT_FACTS = {
    "none": FrontFacts(),
    "groups": FrontFacts(learns=True),
    "pinned": FrontFacts(pins=True),
    "all": FrontFacts(whole=True),
}


@dataclass(frozen=True)
class Algorithm:
    """A member of the family: a front stage before a disk phase."""

    name: str
    front: str  # none | groups | pinned | all
    disk: str  # the word of a class in disk/: sweep | scan | lookup | seek | pages; or none
    needs: str  # nothing | index | memory
    share: float  # of the budget for the front stage, or for a pool of pages
    source: str
    help: str
    equal_reads: bool = False  # a scan's reads are a k-th of the master each, for a whole k

    @property
    def disk_facts(self) -> DiskFacts:
        return DISK_FACTS.get(self.disk, DiskFacts())

    @property
    def front_facts(self) -> FrontFacts:
        return FRONT_FACTS.get(self.front, FrontFacts())

    @property
    def needs_index(self) -> bool:
        return self.needs == "index"

    @property
    def reads_all(self) -> bool:
        """Whether it must be able to read the master from the first row to the last."""
        return self.disk_facts.scans or self.front_facts.whole

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of the master stay in memory for good."""
        return self.front_facts.pins or self.front_facts.whole

    @property
    def pools_pages(self) -> bool:
        """Whether the share of its cache is for pages, not for rows before the disk phase."""
        return self.front == "none" and bool(self.disk_facts.pool_knob)

    @property
    def cache_knob(self) -> str | None:
        """The Params that says the share of its cache; None: it has none, or no choice."""
        if self.pools_pages:
            return self.disk_facts.pool_knob
        return None if self.front_facts.whole or not self.front_facts.answers else "front_share"


_P0 = "CMESHJOIN"
_P1 = "HYBRIDJOIN and X-HYBRIDJOIN"
_P3 = "CACHEJOIN: front stage and load shedding"
_P4 = "Polyzotis et al., Supporting Streaming Updates in an Active Data Warehouse"

# fmt: off
_FAMILY = (
    Algorithm("sweepjoin", "groups", "sweep", "index", 0.55, "semistream",
              "one ordered sweep over just the pages that waiting rows need, hot keys from memory"),
    Algorithm("meshjoin", "none", "scan", "nothing", 0.0, _P4,
              "cyclic sequential scan; a row leaves after it met the whole master",
              equal_reads=True),
    Algorithm("rmeshjoin", "none", "scan", "nothing", 0.0, "R-MESHJOIN, reconstructed",
              "meshjoin whose disk buffer does not depend on the size of the master"),
    Algorithm("cmeshjoin", "groups", "scan", "nothing", 0.12, _P0,
              "meshjoin behind a cache of hot keys"),
    Algorithm("hybridjoin", "none", "seek", "index", 0.0, _P1,
              "reads the pages of the oldest waiting key; they answer every row they can"),
    Algorithm("xhybridjoin", "pinned", "seek", "index", 0.3, _P1,
              "hybridjoin with the first pages kept in memory, for a master ordered by use"),
    Algorithm("chybridjoin", "groups", "seek", "index", 0.15, _P3,
              "hybridjoin behind a cache of hot keys"),
    Algorithm("inlj", "none", "lookup", "index", 0.0, "textbook index nested loop join",
              "one index lookup per stream row, in arrival order"),
    Algorithm("cinlj", "groups", "lookup", "index", 0.7, _P3,
              "inlj behind a cache of hot keys"),
    Algorithm("ssij", "none", "pages", "index", 0.3, "SSIJ, as described in " + _P1,
              "rows wait under their page; the most wanted pages are read first, some are cached"),
    Algorithm("memory", "all", "none", "memory", 0.0, "bound",
              "the whole master in a hash table: as fast as memory allows, if it fits"),
)
# fmt: on
ALGORITHMS: Mapping[str, Algorithm] = {a.name: a for a in _FAMILY}
ALIASES = {"cachejoin": "chybridjoin"}


def join_type(how: str) -> str:
    """inner, left, semi or anti, from our names or Spark's."""
    try:
        return _HOW[how.lower()]
    except (KeyError, AttributeError):
        raise SpecError(
            f"how={how!r} is not a join type; choose inner, left, semi or anti"
        ) from None


def at_most_one(validate: str | None) -> bool:
    """Whether a stream row may have one match at most, in the words of pandas."""
    if validate in (None, "many_to_many", "m:m"):
        return False
    if validate in ("many_to_one", "m:1"):
        return True
    if validate in ("one_to_one", "1:1", "one_to_many", "1:m"):
        raise SpecError(
            f"validate={validate!r} wants the keys of the stream to be unique, and a stream has no "
            'end to look for the second one; choose "many_to_one" or "many_to_many"'
        )
    raise SpecError(f'validate={validate!r} is not known; choose "many_to_one" or "many_to_many"')


def algorithm_named(name: str) -> Algorithm:
    try:
        return ALGORITHMS[ALIASES.get(name, name)]
    except (KeyError, TypeError):
        known = ", ".join(["auto", *ALGORITHMS, *ALIASES])
        raise SpecError(f"algorithm={name!r} does not exist; choose one of {known}") from None


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise SpecError(f"columns={columns!r} is one string; give a list of column names")
    if len(set(columns)) != len(tuple(columns)):
        raise SpecError(f"columns={list(columns)!r} names a column twice")
    return tuple(columns)
