"""Popular keys, kept on the machine for workers to come.

Spark ends Python workers that idle for a minute, and new ones begin with nothing. So a join leaves
what it has learnt in a file, and the next join that is asked the same question begins with it. It
is a help: a file that is damaged, missing or cannot be written costs time, never an answer.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from ...errors import SpecError
from ...safety import (
    SealError,
    own_name,
    private_folder,
    read_private,
    seal,
    temporary_home,
    unseal,
    why_not,
    write_private,
)

OFF = "SEMISTREAM_HOT_KEYS"  # the environment variable that says "off": keys are data, too
MOST_FILES = 64  # the oldest go


def load_hot(identity: str) -> bytes:
    try:
        return bytes(unseal("hot", read_private(_file(identity))).to_pybytes())
    except (OSError, SpecError, SealError):
        return b""


def save_hot(identity: str, learnt: bytes) -> None:
    """Replace what was kept; nothing to keep changes nothing."""
    if not learnt or os.environ.get(OFF) == "off":
        return
    with suppress(OSError, SpecError):
        target = _file(identity)
        with suppress(OSError):  # another worker may be doing the same
            if not target.exists():
                _forget_oldest(target.parent)
            _forget_halves(target.parent)
        write_private(target, seal("hot", learnt))


def forget_hot(identity: str) -> None:
    with suppress(OSError, SpecError):
        _file(identity).unlink(missing_ok=True)


def _file(identity: str) -> Path:
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return scratch_folder("hot-keys", secret=True) / f"{name}.hot"


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.hot"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MOST_FILES + 1)]:
        file.unlink(missing_ok=True)


def _forget_halves(folder: Path) -> None:
    """What workers were writing when they were killed."""
    for half in folder.glob("*.tmp"):
        owner = half.name.split(".")[-2]
        if owner.isdigit() and not _alive(int(owner)):
            half.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's by now
    return True


# --- a folder on this machine that belongs to this user alone ----------------------------------


def scratch_folder(name: str, secret: bool = False) -> Path:
    """Nobody else may write there: what is found in it decides what a query reads. `secret`: nor
    may anybody else read it."""
    base = temporary_home()
    if base is None:
        raise SpecError("there is no folder for temporary files; name a folder with pins=...")
    try:
        return private_folder(base, own_name(), name, secret=secret)
    except OSError as error:
        raise SpecError(f"{why_not(error)}; name a folder with pins=...") from error
