"""Look at rows that were measured: choose, compare, put into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.lib.experiment import Row


def where(rows: Iterable[Row], **labels: Any) -> list[Row]:
    """Those with these values; a value may be a set of them."""
    return [row for row in rows if all(_fits(row.get(k), v) for k, v in labels.items())]


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, set) else bool(value == wanted)


def one(rows: Iterable[Row], **labels: Any) -> Row:
    """The only row with these values."""
    found = where(rows, **labels)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows instead of one have {labels}")
    return found[0]


def values(rows: Iterable[Row], name: str) -> list[Any]:
    """The distinct values of a column, in the order in which they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def ratio(
    rows: Sequence[Row], above: str, below: str, column: str = "rate", **labels: Any
) -> float:
    """How many times as fast one algorithm is as another, at one setting."""
    first = one(rows, algorithm=above, **labels)[column]
    return float(first / one(rows, algorithm=below, **labels)[column])


def span(numbers: Iterable[float], form: str = "{:.1f}") -> str:
    """`1.2-3.4`, or one number where they are alike."""
    found = list(numbers)
    shown = [form.format(n) for n in (min(found), max(found))]
    return shown[0] if shown[0] == shown[1] else "-".join(shown)
