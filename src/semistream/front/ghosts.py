"""How often codes that are not cached were asked for of late.

Counters that codes share grow by whatever falls on them, so that with many cold codes every one of
them looks warm. Here a place remembers two codes by a tag of ten bits, each with its own count: the
new come in, those seen least leave, as in the ghost queue of S3-FIFO. Once as many codes came as
there is room for, all counts halve, and what was seen once is forgotten.
"""

from __future__ import annotations

import numpy as np

from ..kernels import table
from ..kernels.arrays import I32, I64, U32


class Ghosts:
    """2 ** bits places for two codes each, four bytes a place."""

    def __init__(self, bits: int) -> None:
        self._bits, self._new = bits, 0
        self._places = np.zeros((1 << bits, 2), np.uint16)

    @property
    def nbytes(self) -> int:
        return self._places.nbytes

    def add(self, codes: I64, uses: I32) -> I32:
        """Count rows that asked for these distinct codes; returns how many each has had of late."""
        estimate = np.empty(len(codes), np.int32)
        self._new += table.ghost_add(codes, uses, self._places, self._bits, estimate)
        if self._new > self._places.size:
            self._new = 0
            table.halve_ghosts(self._places)
        return estimate

    def put(self, codes: I64, uses: U32) -> None:
        """Codes that leave the cache, and how often they were asked for there."""
        table.ghost_put(codes, uses, self._places, self._bits)

    def resize(self, bits: int) -> None:
        """The first bits of a code's hash are its place: a place becomes several, or several one,
        which keeps of their first words and of their second words the one seen most."""
        size = 1 << bits
        if len(self._places) < size:
            self._places = np.repeat(self._places, size // len(self._places), axis=0)
        self._places = self._places.reshape(size, -1, 2).max(axis=1)
        self._bits, self._new = bits, 0
