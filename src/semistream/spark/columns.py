"""The columns of a DataFrame: as their owner knows them, and under names that Spark can be asked
for.

Spark reads a dot in a name as a path and a backtick as a quote, and takes "x" for "X"; Arrow takes
names as they are. So where names are not plain, Spark gets to see columns by position, and only the
result has their names again. What Arrow cannot say of a type (a collation, a user-defined type, the
fields of an interval) is kept beside it, in the Spark schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructField, StructType

from ..errors import KeyTypeError, SpecError
from .frames import column, columns_of, named

PLAIN = re.compile(r"[^.`*]+")
BINARY = "UTF8_BINARY"  # the collation that compares bytes, as we do


@dataclass(frozen=True)
class Columns:
    """All columns of `df`."""

    df: DataFrame

    @cached_property
    def schema(self) -> StructType:
        """Spark's types, the owner's names."""
        return columns_of(self.df)

    @cached_property
    def arrow(self) -> pa.Schema:
        """As Python workers get them (there with the session's time zone, which is only a way to
        print), the owner's names."""
        return pa.schema([_arrow_field(field) for field in self.schema.fields])

    @cached_property
    def frame(self) -> DataFrame:
        """The same rows, under names that can be asked for."""
        return self.df if _plain(self.schema.names) else self.by_position

    @cached_property
    def by_position(self) -> DataFrame:
        """The same rows; columns are called c0, c1, and so on."""
        return named(self.df, [f"c{i}" for i in range(len(self.schema.names))])

    @property
    def renamed(self) -> bool:
        return self.frame is not self.df

    def column(self, name: str) -> Column:
        """Of `frame`, by the owner's name."""
        return column(f"c{self.schema.names.index(name)}" if self.renamed else name)

    def only(self, names: Sequence[str]) -> Columns:
        """Just these columns, in this order."""
        if names == self.schema.names:
            return self
        places = [f"c{self.schema.names.index(name)}" for name in names]
        return Columns(named(self.by_position.select(*places), names))

    def followed_by(self, added: Sequence[pa.Field]) -> StructType:
        """The Spark schema of these columns and more that have plain types."""
        return StructType([*self.schema.fields, *from_arrow_schema(pa.schema(added)).fields])

    def check_keys(self, names: Iterable[str], side: str) -> None:
        """Keys are compared byte by byte, and a collation means to compare otherwise."""
        wanted = set(names)
        for field in self.schema.fields:
            collation = getattr(field.dataType, "collation", BINARY)  # strings have one
            if field.name in wanted and collation != BINARY:
                raise KeyTypeError(
                    f"{side} key column {field.name!r} is a string with the collation {collation}, "
                    "and keys are compared byte by byte here, so that other rows would match than "
                    'in Spark; make it a plain string with .cast("string"), after lower() on both '
                    "sides where case is not to matter"
                )


def _plain(names: Sequence[str]) -> bool:
    """Whether Spark finds each of these columns by its name."""
    return all(PLAIN.fullmatch(name) for name in names) and len({n.lower() for n in names}) == len(
        names
    )


def _arrow_field(field: StructField) -> pa.Field:
    try:
        kind = to_arrow_type(field.dataType, timezone="UTC")
    except Exception as error:
        raise SpecError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which cannot travel to "
            "Python workers; cast it to another type (a string, say), or drop it"
        ) from error
    return pa.field(field.name, kind, field.nullable)
