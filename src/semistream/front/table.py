"""The front stage's table: code -> where its key group is, its rows, how often it was used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..budget import TABLE_SLOT_BYTES
from ..kernels import table
from ..kernels.arrays import I32, I64, U32, Mask

SHUFFLE = np.uint64(0xD1B54A32D192ED03)  # not the table's own mix
BLOCK = 1 << 14  # slots looked at together


@dataclass(frozen=True)
class Groups:
    """Some key groups: all master rows of each of these codes, one after another."""

    codes: I64
    start: I64  # location of the group's first row
    count: I32  # its rows
    uses: U32 | I32  # how often it was asked for

    def and_these(self, more: Groups) -> Groups:
        """These groups, then some more."""
        if not len(self.codes):
            return more
        pairs = zip(vars(self).values(), vars(more).values(), strict=True)
        return Groups(*(np.concatenate(pair) for pair in pairs))

    def part(self, which: slice | Mask | I64) -> Groups:
        return Groups(self.codes[which], self.start[which], self.count[which], self.uses[which])


class GroupTable:
    """`size` slots, open addressing (kernels/table.py)."""

    SLOT_BYTES = TABLE_SLOT_BYTES

    def __init__(self, size: int) -> None:
        self._slots = np.full((size, 3), -1, np.int64)
        self.used = 0

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes

    def put(self, groups: Groups) -> None:
        """Insert groups, or move those that are there to their new place."""
        uses = groups.uses.astype(np.uint32, copy=False)
        self.used += table.put(groups.codes, groups.start, groups.count, uses, self._slots)

    def drop(self, codes: I64) -> None:
        """Remove those of these codes that are here."""
        self.used -= table.drop(codes, self._slots)

    def probe(self, codes: I64) -> tuple[I64, I32, int]:
        """(start, count, hits) of each code; start is -1 where it is not here."""
        start, count = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
        hits = table.probe(codes, self._slots, start, count)
        return start, count, hits

    def halve(self) -> None:
        """Halve all frequencies."""
        table.halve(self._slots)

    def uses_by_chunk(self, chunks: int, levels: int) -> I32:
        """[chunk, uses]: how many groups of each chunk were asked for so often; those of the last
        column, so often or more."""
        counts = np.zeros((chunks, levels), np.int32)
        table.uses_by_chunk(self._slots, counts)
        return counts

    def in_chunks(self, chosen: Mask) -> Groups:
        """Groups whose rows are in the chosen chunks, most frequent first. The order of equals
        decides who leaves. It is not the table's: else those at its end would always go, and its
        beginning would become one long run that every probe walks through."""
        where = np.empty(self.used, np.int64)
        where = where[: table.in_chunks(self._slots, chosen, where)]
        found = self._slots[where]
        uses = found[:, 2] & table.MOST_USES
        order = np.lexsort((found[:, 0].astype(np.uint64) * SHUFFLE, -uses))
        found, uses = found[order], uses[order]
        count = (found[:, 2] >> 32).astype(np.int32)
        return Groups(found[:, 0].copy(), found[:, 1].copy(), count, uses.astype(np.uint32))

    def uses(self) -> U32:
        """How often each group was asked for."""
        uses, at = np.empty(self.used, np.uint32), 0
        for part in self._blocks():
            uses[at : at + len(part)] = part[:, 2] & table.MOST_USES
            at += len(part)
        return uses

    def copy(self, size: int) -> GroupTable:
        """A table of another size with the same groups."""
        new = GroupTable(size)
        for part in self._blocks():
            counts, uses = (part[:, 2] >> 32).astype(np.int32), part[:, 2] & table.MOST_USES
            new.put(Groups(part[:, 0], part[:, 1], counts, uses.astype(np.uint32)))
        return new

    def _blocks(self) -> Iterator[I64]:
        """Slots in use, a block at a time: some ask for them when memory is short."""
        for at in range(0, len(self._slots), BLOCK):
            part = self._slots[at : at + BLOCK]
            yield part[part[:, 1] >= 0]

    def hottest(self, most: int | None) -> tuple[I64, I64]:
        """Codes and uses of the `most` frequent groups, these first."""
        codes, uses = np.zeros(0, np.int64), np.zeros(0, np.int64)
        keep = self.used if most is None else max(0, most)
        for part in self._blocks():
            codes = np.concatenate([codes, part[:, 0]])
            uses = np.concatenate([uses, part[:, 2] & table.MOST_USES])
            if len(codes) > keep:
                best = np.argpartition(-uses, keep - 1)[:keep] if keep else np.zeros(0, np.int64)
                codes, uses = codes[best], uses[best]
        order = np.argsort(-uses, kind="stable")
        return codes[order], uses[order]
