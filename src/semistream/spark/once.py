"""Changes of a micro-batch that happen once each, however often it is replayed.

A store and a Delta table keep marks: the name of a change, and the number of the last micro-batch
that made it. A replay finds its mark and changes nothing. A function of `foreachBatch` may change a
target several times (upserts, then deletes), so each change has a name of its own. Two of one name
in a micro-batch cannot be told from a replay by what the target knows. But here it is known what
this attempt at the micro-batch has done, so the second one is refused.

    WRITER/NAME    the mark of a change
    WRITER         the mark of earlier releases, which made the first change of a micro-batch only;
                   and of writer_batch=(writer, number), where a number stands for one change
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SpecError

BETWEEN = "/"  # no name has it, so that marks are unique
Last = Callable[[str], int | None]  # the last micro-batch that a mark tells of

_LOCK = threading.Lock()
# Of each target and writer the newest micro-batch: attempt, number, names of what was done.
_DONE: dict[tuple[str, str], tuple[str | None, int, set[str]]] = {}


@dataclass(frozen=True)
class Once:
    """One change of a micro-batch. `attempt` tells a replay from the attempt before it. None: that
    is not known, as in a loop of one's own, where a call with the same number is the same call."""

    writer: str  # a query, or the caller's name for it
    number: int  # of the micro-batch
    name: str
    target: str  # what is changed, for the message
    attempt: str | None
    call: str | None  # which takes name=, such as "upsert_into(path)"; None: the number is for one

    @property
    def mark(self) -> str:
        return self.writer if self.call is None else f"{self.writer}{BETWEEN}{self.name}"

    def done(self, identity: str, last: Last) -> bool:
        """Whether the target has this change already, so that it need not be made. `identity` is
        the target's own: it may have several paths."""
        with _LOCK:
            names = self._names(identity)
        others = names - {self.name}
        if (self.attempt is not None and self.name in names) or (self.call is None and others):
            raise self._second(names)
        marks = [self.mark] if others else [self.mark, self.writer]
        found = [number for mark in marks if (number := last(mark)) is not None]
        return max(found, default=-1) >= self.number

    def made(self, identity: str) -> None:
        """It is there now."""
        with _LOCK:
            names = self._names(identity) | {self.name}
            _DONE[identity, self.writer] = self.attempt, self.number, names

    def _names(self, identity: str) -> set[str]:
        """What this attempt has done so far."""
        attempt, number, names = _DONE.get((identity, self.writer), (None, -1, set()))
        return names if (attempt, number) == (self.attempt, self.number) else set()

    def _second(self, names: set[str]) -> SpecError:
        if self.call is None:
            return SpecError(
                f"batch {self.number} of writer {self.writer!r} has made another change "
                f"({', '.join(sorted(names))}) of {self.target} before, and a number stands for "
                "one change; give each a number of its own, or another writer: writer_batch="
            )
        return SpecError(
            f"micro-batch {self.number} has made a change {self.name!r} of {self.target} before, "
            "and a replay could not tell the two apart. Leave the first one as it is, and give "
            f'this one a name of its own: {self.call[:-1]}, name="...")'
        )


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name or BETWEEN in name:
        raise SpecError(
            f"name={name!r}: give a text that is not empty and has no {BETWEEN!r} in it"
        )
