"""Too little memory for one master, said in terms of the call of `enrich`. Imports no pyspark."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BudgetError


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
        return type(error)(str(error).replace(f"give memory={error.least}", remedy), more)
