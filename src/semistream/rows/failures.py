"""Failures in the middle of an answer, handed on as values.

Answers come out of a chain of generators. An exception that passes through them ends them all, and
what they had not answered yet is gone. So where something can fail after rows have begun to leave,
the failure is yielded in the place of a batch: the chain stays as it is, the outermost reader
raises the error (join/calls.py), and the next call goes on at the very same place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from ..errors import SemiStreamError

T = TypeVar("T")
# What may go away by itself or by what the caller does: anything else is a mistake in a program.
RECOVERABLE = (SemiStreamError, OSError, MemoryError, pa.ArrowException)


@dataclass(frozen=True)
class Failure:
    error: BaseException


def attempt(action: Callable[[], T]) -> Generator[Failure, None, T]:
    """The result of an action that changes nothing if it fails. A failure is yielded, and who goes
    on has the action tried again."""
    while True:
        try:
            return action()
        except RECOVERABLE as error:
            failure = Failure(error)
        yield failure
