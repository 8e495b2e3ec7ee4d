"""Columns of a table in a database, and arrays from what its server sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import MasterError
from ...kernels.arrays import I64, U8, Mask
from ..base import TooBigError


@dataclass(frozen=True)
class Column:
    """`type` is what the join sees. `wire` says how values travel and `bind` how keys do; their
    meaning is the dialect's. Without `bind` it can be no key, and no order to read in."""

    name: str
    type: pa.DataType
    wire: str
    select: str = "{}"  # the expression, around the quoted name
    bind: str | None = None
    nullable: bool = True
    declared: str = ""  # the type in the database's words
    collation: str = ""

    @property
    def fixed(self) -> bool:
        """Values all have the same width on the wire."""
        return self.wire != "var"


@dataclass(frozen=True)
class Index:
    columns: tuple[str, ...]
    unique: bool
    primary: bool
    ordered: bool  # a b-tree


@dataclass(frozen=True)
class Relation:
    """A table as the catalogue describes it; names are the catalogue's own."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    refused: dict[str, str]  # columns that cannot be read, and why
    indexes: tuple[Index, ...]
    rows: int  # an estimate
    is_view: bool
    row_bytes: int  # an estimate, 0 where there is none; all columns, perhaps compressed

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)


def bitmap(valid: Mask, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None


def fixed_array(t: pa.DataType, data: U8, valid: Mask, nulls: int) -> pa.Array:
    """Values side by side; booleans come as a byte each."""
    buffers = [bitmap(valid, nulls), pa.py_buffer(data)]
    if pa.types.is_boolean(t):
        bits = pa.py_buffer(np.packbits(data.view(np.bool_), bitorder="little"))
        buffers[1] = bits
    return pa.Array.from_buffers(t, len(valid), buffers, null_count=nulls)


def var_array(column: Column, ends: I64, data: U8, valid: Mask, nulls: int) -> pa.Array:
    """Strings or bytes; decimals come as strings and are read here."""
    t = column.type
    if ends[-1] >= 1 << 31:
        raise TooBigError
    text = pa.string() if pa.types.is_decimal(t) else t
    buffers = [bitmap(valid, nulls), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    array = pa.Array.from_buffers(text, len(valid), buffers, null_count=nulls)
    if text == t:
        return array
    try:
        return pc.cast(array, t)
    except pa.ArrowInvalid as error:
        raise no_value(column, str(error).splitlines()[0]) from None


def no_value(column: Column, what: str) -> MasterError:
    return MasterError(
        f"column {column.name!r} ({column.declared}) has a value that {column.type} cannot hold: "
        f"{what}; leave it out with columns=[...], or such rows with where="
    )
