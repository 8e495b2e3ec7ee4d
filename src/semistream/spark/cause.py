"""What went wrong in a task, out of the many lines that Spark makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from .. import errors
from ..errors import BudgetError, SemiStreamError

# Our error as workers print it, up to what Spark writes behind it.
_OURS = re.compile(
    r"\bsemistream\.errors\.(\w+): (.*?)(?=\s*SQLSTATE: |\n\s*\n|\n\s+at |\n===|\s*\Z)", re.DOTALL
)
_LEAST = re.compile(r"\bmemory(?:_per_task)?=(\d+)")  # the last: that of the whole task


def cause(failed: object) -> SemiStreamError | None:
    """The semistream error that made a query or a job fail; None where it was something else.

    `failed` is a streaming query, or an exception that an action or `awaitTermination` raised.
    """
    if isinstance(failed, SemiStreamError):
        return failed
    if not isinstance(failed, BaseException) and hasattr(failed, "exception"):
        failed = failed.exception()  # of a query; None while it is well
    text = "" if failed is None else str(failed)
    found = [*_OURS.finditer(text)][-1:]
    # One that was followed by another error is not what ended the task.
    if not found or "Traceback (most recent call last)" in text[found[0].end() :]:
        return None
    return _error(*found[0].groups())


def _error(name: str, message: str) -> SemiStreamError:
    kind = getattr(errors, name, SemiStreamError)
    if issubclass(kind, BudgetError):
        least = _LEAST.findall(message)
        return kind(message, int(least[-1]) if least else 0)
    error: SemiStreamError = kind(message)
    return error


@contextmanager
def told_plainly() -> Iterator[None]:
    """Around a job that we run ourselves: our own error of a task is raised as that error."""
    try:
        yield
    except Exception as error:
        ours = cause(error)
        if ours is None or ours is error:
            raise
        raise ours from None
