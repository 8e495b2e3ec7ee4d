"""Keys with more than one row, found while rows pass by in code order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DuplicateKeyError
from ...kernels.arrays import I64
from ...rows.layout import shown_value

if TYPE_CHECKING:
    from .write import StoreDesign


class Duplicates:
    """Counts them. Rows of one code may come in several calls, so those of the last one wait; where
    codes are hashes, keys that only share a code are told apart."""

    def __init__(self, design: StoreDesign) -> None:
        self._key, self._natural = list(design.key), design.natural
        self._waiting: tuple[I64, pa.RecordBatch] | None = None
        self.count = 0
        self.example: dict[str, Any] = {}

    def seen(self, codes: I64, rows: pa.RecordBatch) -> bool:
        """Take in more rows; whether any key was found to have two so far."""
        keys = rows.select(self._key)
        if self._waiting is not None:
            before, waited = self._waiting
            if before[0] == codes[0]:
                codes = np.concatenate([before, codes])
                keys = pa.concat_batches([waited, keys])
            else:
                self._count(before, waited)
        last = int(np.searchsorted(codes, codes[-1], "left"))
        self._count(codes[:last], keys.slice(0, last))
        rest = pa.array(np.arange(last, len(codes)))
        self._waiting = codes[last:].copy(), keys.take(rest)  # copies: the others can go
        return self.count > 0

    def check(self) -> None:
        """All rows have passed: raise if there were any."""
        self.finish()
        if self.count:
            raise duplicate_keys(self.example, self.count)

    def finish(self) -> None:
        """All rows have passed: `count` and `example` are complete."""
        if self._waiting is not None:
            self._count(*self._waiting)
            self._waiting = None

    def _count(self, codes: I64, keys: pa.RecordBatch) -> None:
        same = codes[1:] == codes[:-1]
        if not same.any():
            return
        shared = np.zeros(len(codes), np.bool_)
        shared[1:] |= same
        shared[:-1] |= same
        found = pa.Table.from_batches([keys.filter(pa.array(shared))])
        if self._natural:
            count = len(np.unique(codes[shared]))
        else:
            found = found.rename_columns([str(i) for i in range(found.num_columns)])
            grouped = found.group_by(found.column_names).aggregate([([], "count_all")])
            found = grouped.filter(pc.greater(grouped["count_all"], 1))
            count = found.num_rows
        if count and not self.count:
            columns = zip(self._key, found.columns, strict=False)
            self.example = {name: shown_value(column[0]) for name, column in columns}
        self.count += count


def duplicate_keys(example: dict[str, Any], count: int) -> DuplicateKeyError:
    said = ", ".join(f"{name}={value!r}" for name, value in example.items())
    many = f"{count:,} keys" if count > 1 else "a key"
    return DuplicateKeyError(
        f"the store keeps one row per key (unique=True), and {many} would have more, such as "
        f"{said}; nothing was changed: leave the others out, upsert instead of append to replace "
        "the rows that are there, or make the store without unique",
        example,
        count,
    )
