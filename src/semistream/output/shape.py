"""The columns of the output, and what must be read from the master for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import SpecError
from ..master import MasterInfo
from ..rows.keys import KeyCoder
from ..spec import Condition, JoinSpec

NUMBER = "__number"  # what the last column is called inside; never found by its name


@dataclass(frozen=True)
class Shape:
    """Columns of the output, and what must be read from the master for them."""

    schema: pa.Schema
    master: tuple[str, ...]  # columns to read: those shown, then the key where it is verified
    shown: int  # how many of them are shown
    stream: int  # columns of the stream
    extended: pa.Schema  # the stream's columns, then keys that had to be brought to another type
    keys: tuple[int, ...]  # where each key column in the master's type stands in `extended`
    condition: Condition | None
    stream_asked: tuple[int, ...]  # the condition's columns, in `extended`
    master_asked: tuple[int, ...]  # and in `master`
    ordered: bool  # the last column of `extended` numbers the rows

    def extend(self, batch: pa.RecordBatch, keys: list[pa.Array], number: int) -> pa.RecordBatch:
        """A stream batch with its keys in the master's types; `number` is its first row's."""
        if len(self.extended) == self.stream:
            return batch
        added = [k for k, at in zip(keys, self.keys, strict=True) if at >= self.stream]
        if self.ordered:
            added.append(pa.array(np.arange(number, number + len(batch), dtype=np.int64)))
        return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=self.extended)


def output_shape(spec: JoinSpec, stream: pa.Schema, info: MasterInfo, coder: KeyCoder) -> Shape:
    """Work out the output's columns; names that clash are an error unless `suffix` settles it."""
    keys = {m for _, m in spec.on}
    wanted = spec.columns if spec.columns is not None else tuple(info.schema.names)
    for name in wanted:
        if name not in info.schema.names:
            raise SpecError(
                f"column {name!r} does not exist in the master {info.name}; "
                f"it has {info.schema.names}"
            )
    shown = () if spec.how in ("semi", "anti") else tuple(n for n in wanted if n not in keys)
    fields = list(stream)
    taken = set(stream.names)
    for name in shown:
        final = name + spec.suffix if name in taken and spec.suffix else name
        if final in taken:
            raise SpecError(
                f"the column name {final!r} is in the stream and in the master; give "
                'suffix="_master", leave it out with columns=[...], or rename it'
            )
        taken.add(final)
        field = info.schema.field(name)
        fields.append(pa.field(final, field.type, field.nullable or spec.how == "left"))
    if spec.matched is not None:
        fields.append(_matched_field(spec, taken))
    extra = coder.master if coder.verify else ()
    asked = spec.condition.master_columns if spec.condition is not None else ()
    read = shown + extra + tuple(dict.fromkeys(n for n in asked if n not in shown + extra))
    extended, places = _extended(stream, coder, spec.ordered)
    return Shape(
        pa.schema(fields),
        read,
        len(shown),
        len(stream),
        extended,
        places,
        spec.condition,
        tuple(stream.names.index(n) for n in spec.condition.stream_columns)
        if spec.condition is not None
        else (),
        tuple(read.index(n) for n in asked),
        spec.ordered,
    )


def _matched_field(spec: JoinSpec, taken: set[str]) -> pa.Field:
    if spec.how != "left":
        raise SpecError(
            f"matched_column={spec.matched!r} tells rows with a match from others, and "
            f'how="{spec.how}" has only one kind; use how="left", or leave it out'
        )
    if spec.matched in taken:
        raise SpecError(
            f"matched_column={spec.matched!r}: there is such a column already; choose another"
        )
    return pa.field(spec.matched, pa.bool_(), False)


def _extended(
    stream: pa.Schema, coder: KeyCoder, ordered: bool
) -> tuple[pa.Schema, tuple[int, ...]]:
    """Keys are kept twice only where the stream's own column has another type."""
    fields, keys = list(stream), []
    for name, target in zip(coder.stream, coder.types, strict=True):
        if not coder.verify or stream.field(name).type == target:
            keys.append(stream.get_field_index(name))
        else:
            keys.append(len(fields))
            fields.append(pa.field(f"__key_{len(fields)}", target))
    if ordered:
        fields.append(pa.field(NUMBER, pa.int64(), False))
    return pa.schema(fields), tuple(keys)
