"""Which partition each row of a map task goes to. Runs in tasks; imports nothing of pyspark.

Rows of one key go together, and keys of neighbouring pages too, so that the tasks of the join share
few pages. Where that would give a partition too much, less goes together: first a crowded range of
pages is divided by key, then a hot key by row. Rows that match nothing, and those of hot keys, may
go anywhere: they fill up the partitions that got least.

If a machine is lost, Spark runs single map tasks again, perhaps with their rows in another order. A
row that then went elsewhere would be there twice, or not at all. So a target depends on the SET of
rows of the task, never on their order nor on anything kept from other tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...kernels.arrays import I32, I64, U64, Mask
from ...rows.keys import KeyCoder

Number = TypeVar("Number", bound=np.generic)

CELLS = 32  # ranges of pages, or of hashes, per partition
PART = 8  # what goes together may be an eighth of a partition
FEW = 4  # rows: so few are not worth dividing
BLOCK = 1 << 17  # rows that are worked on at a time, where that saves memory
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Spread:
    """Called with the batches of one map task (row hash, then key columns): targets of its rows.

    `starts` are the codes at which ranges of pages begin; without any, codes are cut by hash.
    `exact`: rows of equal hash are equal rows, so it does not matter which of them goes where.
    """

    coder: KeyCoder
    partitions: int
    starts: I64
    exact: bool

    def __call__(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        sizes, codes, hashes, usable = [], [], [], []
        for row_hash, *keys in batches:
            encoded = self.coder.encode(
                pa.RecordBatch.from_arrays(keys, names=list(self.coder.stream))
            )
            able = encoded.usable
            sizes.append(len(row_hash))
            # Copies: the codes may be a view of the batch, which would keep all its columns alive.
            codes.append(np.array(encoded.codes))
            hashes.append(np.array(row_hash.to_numpy(zero_copy_only=False)).view(np.uint64))
            usable.append(np.ones(len(row_hash), np.bool_) if able is None else able)
        rows = (_joined(codes, np.int64), _joined(usable, np.bool_), _joined(hashes, np.uint64))
        targets = self.targets(*rows)
        del rows
        at = 0
        for size in sizes:
            yield pa.array(targets[at : at + size])
            at += size

    def targets(self, codes: I64, usable: Mask, hashes: U64) -> I32:
        """For each row its partition; rows that are not `usable` match nothing, so go anywhere."""
        most = len(codes) // (PART * self.partitions)  # of what goes together
        free = self._free
        cells = self._cells(codes)
        cells[~usable] = free
        self._divide(codes, cells, most)
        load = _count(cells, free + 1)
        crowded = load > 2 * max(most, FEW)  # several keys that are nearly hot met there
        load[crowded] = 0
        crowded[free] = True
        home, anywhere = _homes(load[:free], self.partitions), crowded[cells]
        targets: I32 = np.append(home, np.int32(0))[cells]
        have = np.bincount(home, load[:free], self.partitions).astype(np.int64)
        targets[anywhere] = self._deal(hashes[anywhere], have)
        return targets

    @property
    def _free(self) -> int:
        """The cell of rows that may go anywhere, after ranges of pages and cells by hash."""
        return len(self.starts) + CELLS * self.partitions

    def _cells(self, codes: I64) -> I32:
        """The range of pages of each code; without an index, a cell by hash after those."""
        cells = np.empty(len(codes), np.int32)
        for at in range(0, len(codes), BLOCK):
            part = codes[at : at + BLOCK]
            if len(self.starts):
                found = np.searchsorted(self.starts, part, "right") - 1
                cells[at : at + BLOCK] = np.maximum(found, 0)
            else:
                cells[at : at + BLOCK] = self._by_key(part)
        return cells

    def _by_key(self, codes: I64) -> I64:
        mixed = codes.view(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN
        cell = (mixed >> np.uint64(32)) % np.uint64(CELLS * self.partitions)
        return cell.astype(np.int64) + len(self.starts)

    def _divide(self, codes: I64, cells: I32, most: int) -> None:
        """Rows of hot keys may go anywhere; keys of ranges that are crowded without them go by
        hash."""
        free = self._free
        hot = _count(cells, free + 1) > max(1, most)  # or no key there can be
        hot[free] = False
        where = np.flatnonzero(hot[cells])
        some = codes[where]
        values, counts = np.unique(some, return_counts=True)
        is_hot = _among(some, values[counts > max(1, most)])
        cells[where[is_hot]] = free
        where, some = where[~is_hot], some[~is_hot]
        left = _count(cells, free + 1) > max(most, FEW)
        crowded = left[cells[where]]
        cells[where[crowded]] = self._by_key(some[crowded])

    def _deal(self, hashes: U64, have: I64) -> I32:
        """Targets of free rows, so that all partitions get the same: by rank in hash order."""
        # The sum is the same in any order. It moves what does not divide evenly, so that not every
        # map task gives it to the same partitions.
        first = int(hashes.sum(dtype=np.uint64) % np.uint64(self.partitions))
        room = np.roll(_fill(np.roll(have, -first), len(hashes)), first)
        if not self.exact:  # rows of equal hash may differ, so they stay together
            rank = np.searchsorted(np.sort(hashes), hashes, "left")
            return np.searchsorted(np.cumsum(room), rank, "right").astype(np.int32)
        targets = np.empty(len(hashes), np.int32)
        targets[np.argsort(hashes)] = np.repeat(np.arange(len(room), dtype=np.int32), room)
        return targets


def _homes(load: I64, n: int) -> I32:
    """The partition of each cell: always the same one, unless that would get too much."""
    home = (np.arange(len(load)) % n).astype(np.int32)
    mean = float(load.sum()) / n
    # Some more than the mean is chance where rows are few, and other map tasks make up for it.
    most = mean * (1 + 1 / PART) + min(mean / 4, 2 * mean**0.5)
    have = np.bincount(home, load, n).astype(np.int64)
    moving = np.zeros(len(load), np.bool_)
    for p in np.flatnonzero(have > most):
        mine = np.flatnonzero((home == p) & (load > 0))
        moving[mine[np.cumsum(load[mine]) > most]] = True
    have -= np.bincount(home[moving], load[moving], n).astype(np.int64)
    least = [(int(rows), p) for p, rows in enumerate(have)]
    heapq.heapify(least)
    heaviest = np.argsort(-load, kind="stable")
    for cell in heaviest[moving[heaviest]]:
        rows, place = least[0]
        home[cell] = place
        heapq.heapreplace(least, (rows + int(load[cell]), place))
    return home


def _fill(have: I64, more: int) -> I64:
    """How many of `more` rows each partition gets, so that the fewest any has are as many as can
    be. In whole numbers: rounding must not depend on the machine."""
    order = np.argsort(have, kind="stable")
    level = have[order]
    count = np.arange(1, len(have) + 1)
    filled = (np.cumsum(level) + more) // count
    enough = np.append(filled[:-1] < level[1:], True)
    k = int(np.argmax(enough)) + 1  # so many are filled up, the others have more already
    room = np.zeros_like(have)
    lowest = np.sort(order[:k])
    room[lowest] = filled[k - 1] - have[lowest]
    room[lowest[: more - int(room.sum())]] += 1
    return room


def _count(cells: I32, count: int) -> I64:
    """Rows of each cell."""
    load = np.zeros(count, np.int64)
    for at in range(0, len(cells), BLOCK):
        load += np.bincount(cells[at : at + BLOCK], minlength=count)
    return load


def _among(codes: I64, some: I64) -> Mask:
    if not len(some):
        return np.zeros(len(codes), np.bool_)
    found = np.searchsorted(some, codes)
    return np.equal(some[np.minimum(found, len(some) - 1)], codes)


def _joined(parts: list[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    """One array; the parts are emptied, so that both are not held for long."""
    joined = np.concatenate(parts) if parts else np.empty(0, dtype)
    parts.clear()
    return joined
