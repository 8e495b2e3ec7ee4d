"""The budget: how it is written, and one ledger of what a join holds."""

from __future__ import annotations

import re

from ..errors import OverrunError, SpecError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}  # as Spark and Java write them


def parse_bytes(memory: int | float | str, whole: int | None = None) -> int:
    """64_000_000, "64MB", "64MiB", or "10%" of `whole`."""
    if isinstance(memory, bool) or not isinstance(memory, int | float | str):
        raise SpecError(f'memory={memory!r}: give bytes, "64MB", or "10%" of the master')
    if not isinstance(memory, str):
        if not 0 < memory < 2**62:
            raise SpecError(f"memory={memory!r} must be a positive number of bytes")
        return int(memory)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*|%)\s*", memory)
    if match is None or (match[2] != "%" and match[2].lower() not in _UNITS):
        raise SpecError(f'memory={memory!r} is not a size; write "64MB", "64MiB" or "10%"')
    number = float(match[1])
    if match[2] != "%":
        return parse_bytes(int(number * _UNITS[match[2].lower()]))
    if whole is None:
        raise SpecError(f"memory={memory!r}: this master's size is not known; give bytes")
    return max(1, int(number / 100 * whole))


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Ledger:
    """What one join has allocated, by part. Parts report sizes of buffers that really exist."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: dict[str, int] = {}
        self.held = 0
        self.peak = 0
        self.refused = 0  # how often more was asked for than there is

    def set(self, part: str, count: int) -> None:
        """Part `part` is to hold `count` bytes. More than the budget is refused, and then nothing
        has changed: parts ask before they allocate."""
        held = self.held + count - self.parts.get(part, 0)
        if held > self.budget and held > self.held:
            self.refused += 1
            raise self._over(part, count, held)
        self.held, self.parts[part] = held, count
        self.peak = max(self.peak, held)

    def _over(self, part: str, count: int, held: int) -> OverrunError:
        return OverrunError(
            f"the join would hold {show_bytes(held)} ({part}: {show_bytes(count)}) with a budget "
            f"of {show_bytes(self.budget)}; a single row may be too wide for it: "
            f"give memory={held + held // 4}",
            held + held // 4,
        )
