"""One connection to a database, kept and used again; what is worth it is tried again.

Every statement only reads, so repeating one is harmless. Worth it are a lost connection, a server
that starts or stops, and transactions that were chosen as victims. Then comes a pause, twice as
long every time and with jitter, so that many workers do not come back at once, until the deadline.
Nothing else is repeated. No failure ever passes for "no rows".
"""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ...errors import DatabaseError, SemiStreamError
from ...safety import scrub
from ..base import TooBigError as TooBigError
from .address import Address, Secret
from .columns import Column

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
GRACE = 2.0  # seconds beyond the statement's own timeout, before the client gives up on an answer


_ABANDONED: list[Any] = []  # kept, for their own clean-up would talk to the server


class FailedError(Exception):
    """What a driver reports, in our words: no driver's exception gets any further, since it may
    carry addresses and passwords."""

    def __init__(self, message: str, again: bool = False, remedy: str = "") -> None:
        super().__init__(message)
        self.again, self.remedy = again, remedy


@dataclass
class Query:
    """Text with placeholders, and the values to bind, as the dialect has packed them."""

    text: str = ""
    params: list[Any] = field(default_factory=list)


class Driver(ABC):
    """One connection of a driver. Everything it raises is a FailedError or a TooBigError."""

    @abstractmethod
    def open(self, place: Address, password: Secret | None) -> None: ...

    @abstractmethod
    def select(
        self, query: Query, columns: Sequence[Column], limit: int | None, within: float
    ) -> list[pa.Array]:
        """Run a query whose columns are `columns`; the result has `limit` bytes at most."""

    @abstractmethod
    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of a connection that another process goes on using: say nothing on it."""
        _ABANDONED.append(self)


class Session:
    """`sleep`, `clock` and `rng` can be replaced, for tests."""

    def __init__(
        self,
        place: Address,
        make: Callable[[], Driver],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.place, self._make = place, make
        self._clock, self._sleep = clock, sleep
        self._rng = rng if rng is not None else random.Random()
        self._driver: Driver | None = None
        self._pid = os.getpid()
        self._password: Secret | None = None

    def select(
        self, query: Query, columns: Sequence[Column], limit: int | None = None
    ) -> pa.RecordBatch:
        """All rows of a query. TooBigError: they have more than `limit` bytes."""
        end = self._clock() + self.place.deadline
        pause, tries = FIRST_PAUSE, 0
        while True:
            tries += 1
            try:
                arrays = self._once(query, columns, limit)
                return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
            except FailedError as error:
                problem = error
            except BaseException:  # interrupted in mid-result, or too big: where is it now?
                self.close()
                raise
            if problem.again:
                self.close()
            wait = pause * (0.5 + self._rng.random() / 2)
            if not problem.again or self._clock() + wait > end:
                raise self._error(problem, tries)
            self._sleep(wait)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _once(self, query: Query, columns: Sequence[Column], limit: int | None) -> list[pa.Array]:
        if self._driver is not None and self._pid != os.getpid():
            self._driver.abandon()  # inherited by a fork: it is the parent's
            self._driver = None
        if self._driver is None:
            driver = self._make()
            self._password = self.place.password()
            try:
                driver.open(self.place, self._password)
            except BaseException as error:
                driver.close()
                ours = isinstance(error, FailedError | SemiStreamError)
                if ours or not isinstance(error, Exception):
                    raise
                # An error of encoding holds all of what it could not encode: the password.
                problem = f"no connection: the driver raised {type(error).__name__}"
                raise FailedError(problem, remedy="check user, password and host") from None
            self._driver, self._pid = driver, os.getpid()
        within = self.place.statement_timeout + GRACE
        return self._driver.select(query, columns, limit, within)

    def _error(self, problem: FailedError, tries: int) -> DatabaseError:
        secret = self._password
        text = f"{self.place.shown}: {secret.scrub(str(problem)) if secret else scrub(problem)}"
        if tries > 1:
            text += f" (tried {tries} times in {self.place.deadline:g} s)"
        if problem.remedy:
            text += f"; {problem.remedy}"
        return DatabaseError(text)

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close() if self._pid == os.getpid() else driver.abandon()

    def __del__(self) -> None:
        """Masters are often left to the garbage collector, and servers count connections."""
        if getattr(self, "_driver", None) is not None:
            self.close()
