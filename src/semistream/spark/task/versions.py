"""Pins: which version of a master a micro-batch is joined with.

A master may get a new version while a micro-batch runs, and a micro-batch may run again after a
crash. So its first task writes down the newest version, in a file that is created only if it is
absent; all other tasks, and every replay, read what is written there.

    PINS/QUERY/BATCH-MASTER.pin    {"master": PATH, "version": 7, "query": ..., "batch": ...}
    PINS/pins.id                   tells the folder from one of the same path on another machine

QUERY is the query's id, or the name that checkpoint.py has for a copy of it. MASTER stands for the
master's path without links, as the driver sees it: a link to a store is that store.

`pinned_versions` in master/store/expire.py reads these files too: a pinned version does not expire.
Imports nothing of pyspark but in a task, where it is there anyway.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import DamagedError, MasterError, SpecError
from ...master import Master
from ...master.storage import Place, place_at
from .open import open_in_task

RETAINED = 100  # micro-batches that Spark can go back, unless it is told otherwise
ID = "pins.id"
TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # a pin on its way
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's local properties
OWNER = "semistream.owner"  # ours: the query, and the name under which it keeps pins and marks


def owner_named(told: str | None, query: str) -> str | None:
    """What our property says of this query; a thread may have inherited that of another."""
    of, _, owner = (told or "").partition(" ")
    return owner if of == query and owner else None


def task_context() -> Any:
    """pyspark's TaskContext of this task, None outside of one. Not imported: in a task it is there,
    and elsewhere there is no need of pyspark."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.TaskContext.get()


@dataclass(frozen=True)
class Batch:
    """A micro-batch of a streaming query."""

    query: str  # its id, or the name of a copy
    number: int

    @classmethod
    def running(cls) -> Batch | None:
        """The one that the task which calls this belongs to; None outside of a streaming query."""
        task = task_context()
        if task is None:
            return None
        query, number = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if query is None or number is None:
            return None
        return cls(owner_named(task.getLocalProperty(OWNER), query) or query, int(number))


@dataclass(frozen=True)
class PinFolder:
    """A folder of pins, as the driver made it."""

    path: str
    id: str
    always: bool = True  # False: tasks of no micro-batch are of no stream, and need no pin

    @classmethod
    def at(cls, path: str) -> PinFolder:
        place = place_at(path)
        try:
            with suppress(FileExistsError):
                place.create(ID, uuid.uuid4().hex.encode())
            return cls(path, place.read(ID).decode())
        except OSError as error:
            raise SpecError(
                f"the folder of pins {path} cannot be used: {error.strerror}; name one where all "
                "executors can make files: pins=..."
            ) from error

    def batch(self) -> Batch | None:
        """The micro-batch whose version is to be pinned, if the task belongs to one."""
        found = Batch.running()
        if found is None and self.always:
            raise SpecError(
                "Spark does not tell this task of a stream its micro-batch, so the version of the "
                "master cannot be noted for a replay. So it is in foreachBatch over Spark Connect, "
                "and in threads of your own: call enrich inside the function, for the batch, or "
                "fix the version with version=..."
            )
        return found

    def check(self) -> None:
        """Each machine having a folder of its own would mean that each chooses a version."""
        try:
            found = place_at(self.path).read(ID).decode()
        except OSError:
            found = "none"
        if found != self.id:
            raise MasterError(
                f"the folder of pins {self.path} is another one here than on the driver ({found} "
                f"instead of {self.id}); name one that all executors share: pins=..."
            )


class Pins:
    """The pins of a micro-batch in a folder that all tasks reach."""

    def __init__(self, folder: PinFolder, batch: Batch) -> None:
        self._place: Place = place_at(folder.path)
        self._folder, self._batch = folder, batch

    def master(self, locator: dict[str, Any], have: Master | None = None) -> Master:
        """The master at the version of this micro-batch: `have` itself where that is the one."""
        self._folder.check()
        name = self._name(real_path(locator))
        version, newest = self._read(name, locator), None
        if version is None and real_path(locator) != locator["path"]:
            # Earlier releases had pins of their own for a link.
            version = self._read(self._name(locator["path"]), locator)
        if version is None:
            newest = (
                have.newest() if have is not None else open_in_task(locator | {"version": None})
            )
            try:
                version = self._pin(name, locator, newest)
            except BaseException:
                _close(newest, have)
                raise
        for opened in (have, newest):
            if opened is not None and opened.describe().version == version:
                if opened is have:
                    _close(newest, have)
                return opened
        _close(newest, have)
        return self._open(name, locator, version)

    def _name(self, path: str) -> str:
        """The master's path in it: two masters in one query have pins of their own."""
        which = hashlib.sha256(path.encode()).hexdigest()[:16]
        return f"{self._batch.query}/{self._batch.number:012d}-{which}.pin"

    def _read(self, name: str, locator: dict[str, Any]) -> int | None:
        try:
            content = self._place.read(name)
        except FileNotFoundError:
            return None
        try:
            pin = json.loads(content)
            version = pin["version"]
            mine = (self._batch.query, self._batch.number)
            paths = (locator["path"], real_path(locator))
            if pin["master"] not in paths or (pin["query"], pin["batch"]) != mine:
                raise ValueError("it is about another master or micro-batch")
            if type(version) is not int:
                raise ValueError(f"its version is {version!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(
                f"the pin {self._place}/{name} is damaged: {error!r}; restore it. {self._way_out()}"
            ) from error
        if pin.get("store") != _identity(locator):
            raise MasterError(
                f"{locator['path']} was deleted and built anew since {self._words()} was joined "
                f"with its version {version} ({self._place}/{name}). {self._way_out()}"
            )
        return version

    def _pin(self, name: str, locator: dict[str, Any], newest: Master) -> int:
        """Write the newest version down; where another task was faster, its version holds."""
        if _identity(newest.locator()) != _identity(locator):
            raise MasterError(
                f"{locator['path']} was deleted and built anew since the query began; start it "
                "again"
            )
        version = newest.describe().version
        pin = {
            "master": real_path(locator),
            "store": _identity(locator),
            "version": version,
            "query": self._batch.query,
            "batch": self._batch.number,
        }
        assert version is not None
        try:
            self._place.create(name, json.dumps(pin).encode())
        except FileExistsError:
            others = self._read(name, locator)
            return version if others is None else others
        except OSError as error:
            raise MasterError(
                f"the pin {self._place}/{name} cannot be written: {error.strerror}; all executors "
                "need the right to make files there, or name another folder: pins=..."
            ) from error
        self._forget_old()
        return version

    def _forget_old(self) -> None:
        """Micro-batches that Spark cannot go back to need no version any more, unless their pin is
        younger than some that are needed: then another query of the same id is at work, which lags
        behind (Connect does not tell a copied checkpoint). Nor does anyone need what a killed task
        left half way: who wrote before the pin of the last micro-batch has written it by now, or
        never will."""
        files = self._place.list(self._batch.query)
        pins = [(f, int(n)) for f in files if (n := f.name.partition("-")[0]).isdecimal()]
        first = self._batch.number - RETAINED
        oldest = min((f.changed for f, number in pins if number >= first), default=0)
        gone = [f for f, number in pins if number < first and f.changed <= oldest]
        before = min((f.changed for f, n in pins if n == self._batch.number - 1), default=0)
        gone += [f for f in files if TEMPORARY.fullmatch(f.name) and f.changed < before]
        for file in gone:
            with suppress(OSError):  # the next micro-batch will try again
                self._place.remove(f"{self._batch.query}/{file.name}")

    def _open(self, name: str, locator: dict[str, Any], version: int) -> Master:
        try:
            return open_in_task(locator | {"version": version}, remedy="")
        except DamagedError:
            raise
        except MasterError as error:
            raise MasterError(
                f"{self._words()} is pinned to version {version} of {locator['path']} by "
                f"{self._place}/{name}, and that cannot be opened: {error}. Expire with "
                f"pins={str(self._place)!r}, which keeps such versions. {self._way_out()}"
            ) from error

    def _words(self) -> str:
        return f"micro-batch {self._batch.number} of query {self._batch.query}"

    def _way_out(self) -> str:
        return (
            "If the sink has no rows of this micro-batch yet, you can delete the pin: then the "
            "newest version is used"
        )


def real_path(locator: dict[str, Any]) -> str:
    """What the driver found behind the links in a master's path."""
    path: str = locator.get("real", locator["path"])
    return path


def _close(newest: Master | None, have: Master | None) -> None:
    """Let go of what was opened only to look."""
    if newest is not None and newest is not have:
        newest.close()


def _identity(locator: dict[str, Any]) -> str | None:
    """What tells a store or a Delta table from another one that is built in its place."""
    found: str | None = locator.get("store", locator.get("table"))
    return found
