"""Join conditions other than equality, for the scan family: each waiting row meets each master row.

    Compare("amount", ">=", "minimum")            stream.amount >= master.minimum
    Band("x", low="lo", high="hi")                master.x BETWEEN stream.lo AND stream.hi
    Predicate(similar, ["name"], ["name"])        any function of two Arrow batches

A condition is asked for many pairs at once: row i of the one batch with row i of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SpecError
from ..kernels.arrays import Mask
from ..spec import Condition

_OPERATORS = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "!=": "not_equal",
    "=": "equal",
}


@dataclass(frozen=True)
class Compare:
    """`stream` column, operator, `master` column."""

    stream: str
    operator: str
    master: str

    def __post_init__(self) -> None:
        if self.operator not in _OPERATORS:
            raise SpecError(
                f"operator {self.operator!r} does not exist; choose one of {' '.join(_OPERATORS)}"
            )

    @property
    def stream_columns(self) -> tuple[str, ...]:
        return (self.stream,)

    @property
    def master_columns(self) -> tuple[str, ...]:
        return (self.master,)

    def mask(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Mask:
        return _call(_OPERATORS[self.operator], stream.column(0), master.column(0))


@dataclass(frozen=True)
class Band:
    """The `master` column lies between the stream's columns `low` and `high`, both included."""

    master: str
    low: str
    high: str

    @property
    def stream_columns(self) -> tuple[str, ...]:
        return (self.low, self.high)

    @property
    def master_columns(self) -> tuple[str, ...]:
        return (self.master,)

    def mask(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Mask:
        value = master.column(0)
        above = _call("less_equal", stream.column(0), value)
        return above & _call("greater_equal", stream.column(1), value)


@dataclass(frozen=True)
class Predicate:
    """`function(stream batch, master batch)` gives a boolean per row, from the named columns."""

    function: Callable[[pa.RecordBatch, pa.RecordBatch], Any] = field(repr=False)
    stream: Sequence[str]
    master: Sequence[str]
    name: str = ""  # of the question, where snapshots are compared

    def __post_init__(self) -> None:
        for which in ("stream", "master"):
            columns = getattr(self, which)
            if isinstance(columns, str) or not columns:
                raise SpecError(f"{which}={columns!r} is not a list of column names")
            object.__setattr__(self, which, tuple(columns))
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__qualname__", "predicate"))

    @property
    def stream_columns(self) -> tuple[str, ...]:
        return tuple(self.stream)

    @property
    def master_columns(self) -> tuple[str, ...]:
        return tuple(self.master)

    def mask(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Mask:
        try:
            found = self.function(stream, master)
        except Exception as error:
            raise SpecError(
                f"the predicate {self.name} failed with {type(error).__name__}: {error}; no row is "
                "lost: go on with drain() if it can work later"
            ) from error
        if isinstance(found, pa.Array | pa.ChunkedArray):
            found = _plain(found)
        result = np.asarray(found)
        if result.dtype != np.bool_ or result.shape != (len(stream),):
            raise SpecError(
                f"the predicate {self.name} gave {result.dtype} of shape {result.shape} for "
                f"{len(stream)} pairs; it must give one boolean for each"
            )
        return result


def _call(name: str, left: pa.Array, right: pa.Array) -> Mask:
    try:
        return _plain(pc.call_function(name, [left, right]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SpecError(
            f"a column of type {left.type} in the stream and one of type {right.type} in the "
            f"master cannot be compared: {error}"
        ) from error


def _plain(mask: Any) -> Mask:
    """As NumPy booleans; unknown is no."""
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))


def check_condition(condition: Condition, stream: pa.Schema, master: pa.Schema) -> None:
    """Refuse unknown columns and types that cannot be compared, before any row comes."""
    sides = (
        ("stream", stream, condition.stream_columns),
        ("master", master, condition.master_columns),
    )
    for side, schema, names in sides:
        for name in names:
            if name not in schema.names:
                raise SpecError(
                    f"column {name!r} of the condition does not exist in the {side}; "
                    f"it has {schema.names}"
                )
    if not isinstance(condition, Predicate):  # it need not expect that there are no rows
        condition.mask(*(_no_rows(schema, names) for _, schema, names in sides))


def _no_rows(schema: pa.Schema, names: Sequence[str]) -> pa.RecordBatch:
    arrays = [pa.nulls(0, schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
