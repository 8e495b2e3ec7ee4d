"""Too little memory for one master, said in terms of the call of `enrich`. Imports no pyspark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import BudgetError, SpecError
from ..memory import parse_bytes

ASKED = re.compile(r"(?:give )?\bmemory=\d+")  # how a join says what it needs


def task_bytes(memory_per_task: int | float | str, whole: int) -> int:
    """As `parse_bytes`, for what the call of `enrich` names otherwise."""
    try:
        return parse_bytes(memory_per_task, whole)
    except SpecError as error:
        raise SpecError(str(error).replace("memory=", "memory_per_task=", 1)) from None


@dataclass(frozen=True)
class Share:
    """What the join with one master gets of a task's memory, in bytes."""

    memory: int
    task: int  # of all masters together: memory_per_task
    master: str | None  # its name; None: it is the only one, and gets all

    def too_small(self, error: BudgetError, granted: int) -> BudgetError:
        """What to change in the call, where the join had `granted`: less than its share while it
        had to divide it with joins of other calls, and so it would be with a larger one."""
        least = max(error.least, -(-error.least * self.memory // granted))
        more = self.task - self.memory + least
        remedy = f"give memory_per_task={more}"
        if self.master is not None:
            remedy = (
                f"give Master({self.master!r}, ..., memory={least}), and memory_per_task={more}"
            )
        message, found = ASKED.subn(lambda _: remedy, str(error))
        return type(error)(message if found else f"{message}; {remedy}", more)
