"""The front stage's table: code -> where its key group is, its rows, how often it was used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernels import table

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U32 = NDArray[np.uint32]


@dataclass
class Groups:
    """Some entries of the table."""

    codes: I64
    start: I64  # location of the group's first row
    count: I32  # its rows
    uses: U32

    def part(self, which: slice) -> Groups:
        return Groups(self.codes[which], self.start[which], self.count[which], self.uses[which])


class GroupTable:
    """2 ** bits slots, open addressing (kernels/table.py)."""

    SLOT_BYTES = 8 + 8 + 4 + 4

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._slots = np.full((1 << bits, 2), -1, np.int64)
        self._count = np.zeros(1 << bits, np.int32)
        self.frequency = np.zeros(1 << bits, np.uint32)
        self.used = 0

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._count.nbytes + self.frequency.nbytes

    def put(self, groups: Groups) -> None:
        """Insert groups, or move those that are there to their new place."""
        self.used += table.put(
            groups.codes,
            groups.start,
            groups.count,
            groups.uses,
            self._slots,
            self._bits,
            self._count,
            self.frequency,
        )

    def remove(self, codes: I64) -> None:
        table.remove(codes, self._slots, self._bits, self._count, self.frequency)
        self.used -= len(codes)

    def probe(self, codes: I64) -> tuple[I64, I32, int]:
        """(start, count, hits) of each code; start is -1 where it is not here."""
        start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        hits = table.probe(
            codes, self._slots, self._bits, self._count, self.frequency, start, count
        )
        return start, count, hits

    def in_chunks(self, chosen: NDArray[np.bool_]) -> Groups:
        """Groups whose rows are in the chosen chunks, most frequent first."""
        found = np.empty(self.used, np.int64)
        found = found[: table.in_chunks(self._slots, chosen, found)]
        found = found[np.argsort(-self.frequency[found].astype(np.int64), kind="stable")]
        return Groups(
            self._slots[found, 0],
            self._slots[found, 1],
            self._count[found],
            self.frequency[found],
        )
