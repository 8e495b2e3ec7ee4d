"""The nouns: what changes results (JoinSpec), what changes speed only (Params), and the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import SpecError

_HOW = {"inner": "inner", "left": "left", "semi": "semi", "anti": "anti"}
_HOW |= {"leftouter": "left", "left_outer": "left", "leftsemi": "semi", "left_semi": "semi"}
_HOW |= {"leftanti": "anti", "left_anti": "anti"}


@dataclass(frozen=True)
class JoinSpec:
    """The question: everything that the result depends on, besides the data."""

    on: tuple[tuple[str, str], ...]  # (stream column, master column)
    how: str
    columns: tuple[str, ...] | None  # of the master; None: all but the key
    suffix: str | None  # for master columns whose name the stream has too


@dataclass(frozen=True)
class Params:
    """Knobs that change speed and never results. None: chosen for the budget."""

    front_share: float | None = None  # of the budget, for the front stage
    output_bytes: int | None = None  # the most one output batch holds
    read_bytes: int | None = None  # what one read of the disk phase brings
    piece_rows: int | None = None  # stream rows taken in at a time
    threshold: int = 2  # sightings before a key group is cached


@dataclass(frozen=True)
class Algorithm:
    """A member of the family: a front stage before a disk phase."""

    name: str
    front: str  # none | groups | all
    disk: str  # sweep | scan | lookup | none
    needs: str  # nothing | index | memory
    source: str
    help: str


_FAMILY = (
    Algorithm(
        "sweepjoin",
        "groups",
        "sweep",
        "index",
        "semistream",
        "one ordered sweep over just the pages that waiting rows need, hot keys from memory",
    ),
    Algorithm(
        "meshjoin",
        "none",
        "scan",
        "nothing",
        "Polyzotis et al., Supporting Streaming Updates in an Active Data Warehouse",
        "cyclic sequential scan; a row leaves after it met the whole master",
    ),
    Algorithm(
        "inlj",
        "none",
        "lookup",
        "index",
        "textbook index nested loop join",
        "one index lookup per stream row, in arrival order",
    ),
    Algorithm(
        "memory",
        "all",
        "none",
        "memory",
        "bound",
        "the whole master in a hash table: as fast as memory allows, if it fits",
    ),
)
ALGORITHMS: Mapping[str, Algorithm] = {a.name: a for a in _FAMILY}


def join_type(how: str) -> str:
    """inner, left, semi or anti, from our names or Spark's."""
    try:
        return _HOW[how.lower()]
    except (KeyError, AttributeError):
        raise SpecError(
            f"how={how!r} is not a join type; choose inner, left, semi or anti"
        ) from None


def algorithm_named(name: str) -> Algorithm:
    try:
        return ALGORITHMS[name]
    except (KeyError, TypeError):
        known = ", ".join(["auto", *ALGORITHMS])
        raise SpecError(f"algorithm={name!r} does not exist; choose one of {known}") from None


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise SpecError(f"columns={columns!r} is one string; give a list of column names")
    if len(set(columns)) != len(tuple(columns)):
        raise SpecError(f"columns={list(columns)!r} names a column twice")
    return tuple(columns)
