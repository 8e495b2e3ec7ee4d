"""Opening, in a task, what the driver has opened before. Imports nothing of pyspark."""

from __future__ import annotations

import os
import platform
from typing import Any

from ..errors import DamagedError, DatabaseError, MasterError, StoreError
from ..master import Master, from_locator

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


def not_written(folder: str, error: OSError) -> StoreError:
    """A task could not write into the folder of a store, which the driver could."""
    reason = error.strerror or str(error)
    return StoreError(
        f"a task on {platform.node()} cannot write to {folder}: {reason}; the driver made this "
        f"folder: {SHARED}"
    )
