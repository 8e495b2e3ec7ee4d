"""Opening, in a task, what the driver has opened before. Imports nothing of pyspark."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import DamagedError, DatabaseError, MasterError, StoreError
from ...master import Master, Store, from_locator
from ...master.storage import LocalPlace
from ...master.store import manifest_if_there, manifest_name, versions

SHARED = (
    "its path must mean the same on the driver and on every executor: a network file system "
    "mounted everywhere, or an object store"
)


def open_in_task(locator: dict[str, Any], remedy: str = "; call enrich again") -> Master:
    """As `from_locator`. Where it fails, the driver could open the master and this process cannot,
    so the message says which machine this is and what may differ there."""
    try:
        return from_locator(locator)
    except (DamagedError, DatabaseError):
        raise  # the same for all who look
    except (MasterError, OSError) as error:
        path = str(locator.get("path", ""))
        if not os.path.isabs(path):
            raise  # an object store, the same for all, or no path at all
        raise _explained(path, error, remedy) from error


def _explained(path: str, error: Exception, remedy: str) -> MasterError:
    host = platform.node()
    if not os.path.exists(path):
        return StoreError(
            f"the master {path} was there for the driver and is not in a task on {host}: {SHARED}"
        )
    if isinstance(error, OSError):
        return StoreError(
            f"the master {path} cannot be read in a task on {host}: {error.strerror or error}; "
            "give the user that runs executors the right to read it"
        )
    return MasterError(f"{error} (in a task on {host}, since the driver opened it){remedy}")


def check_there(master: Master, locator: dict[str, Any]) -> None:
    """What a warm join has in memory, or has mapped, outlives the files, and must not be answered
    from when those are gone. A look at one file; what is in an object store is not looked at."""
    if isinstance(master, Store):
        if isinstance(master.place, LocalPlace):
            _check_store(master, master.place)
    elif os.path.isabs(path := str(locator.get("path", ""))) and not os.path.exists(path):
        raise MasterError(_gone(path))


# The manifest of a store at its version, as it was when it was last compared: the very file.
_COMPARED: WeakKeyDictionary[Store, tuple[int, int, int]] = WeakKeyDictionary()


def _check_store(store: Store, place: LocalPlace) -> None:
    try:
        file = os.stat(place.root / manifest_name(store.version))
    except OSError:
        if versions(place):
            return  # this version has expired; who reads it may go on
        raise StoreError(_gone(str(place))) from None
    now = (file.st_dev, file.st_ino, file.st_mtime_ns)
    if _COMPARED.get(store) == now:
        return
    manifest = manifest_if_there(place, store.version)
    known = store.manifest
    if manifest is not None and (manifest.store, manifest.id) != (known.store, known.id):
        raise MasterError(
            f"{place} was deleted and built anew since the query began; start it again"
        )
    _COMPARED[store] = now


def _gone(path: str) -> str:
    return (
        f"the master {path} was deleted since the query began, or is no longer to be seen on "
        f"{platform.node()}; bring it back, and start the query again"
    )


@contextmanager
def writing_to(folder: str, who: str = "a task") -> Iterator[None]:
    """Around what writes into the folder of a store."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = f"the driver made this folder: {SHARED}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "nothing was changed: make room there, and try again"
        raise StoreError(
            f"{who} on {platform.node()} cannot write to {folder}: {reason}; {remedy}"
        ) from error
