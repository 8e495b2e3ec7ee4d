"""What may be deleted: old versions, and files that dead writers left behind.

While a writer works it holds a lock on a file of its own in the data folder. Its death ends the
lock, whatever killed it, and the next writer removes what it left. In an object store there are no
such locks: there, files that no version names go when they are a day old.

The manifest of a version that expires says so from then on, and its name stays taken for a day: a
slow writer who began before it must not publish under its number, below versions that others saw.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from ...errors import SpecError, StoreError
from . import format as fmt
from .place import DATA, MANIFESTS, FileInfo, LocalPlace, Place, sync_dir

OURS = re.compile(r"\.?[0-9a-f]{32}[-.].*|\.sort-.*")  # names that writers of stores give
UNPUBLISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")  # a manifest on its way
LOCK = re.compile(r"\.writer-[0-9a-f]{32}\.lock")
LEFTOVER_AGE = 86_400.0  # seconds, where locks are impossible
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


# --- writers at work ------------------------------------------------------------------------------


@contextmanager
def writing(place: Place, new: bool = False) -> Iterator[None]:
    """Be known as a writer; clean up behind those who died, and in the end behind oneself. `new`:
    there is no store yet."""
    if not isinstance(place, LocalPlace):
        _try_to_clean(place)
        yield
        return
    path = place.data / f".writer-{uuid.uuid4().hex}.lock"
    handle = _lock(path, place if new else None)
    try:
        _try_to_clean(place, path.name)
        yield
    finally:
        try:
            _try_to_clean(place, path.name)
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)


def _lock(path: Path, new: Place | None) -> int:
    """A new file, locked. Someone who cleans up may remove it before the lock is on it, and someone
    who fails to make a store at the same place may remove the folder."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if new is not None and isinstance(error, FileNotFoundError):
                new.prepare()
                continue
            raise StoreError(
                f"{path.parent} cannot be written to: {error.strerror}; a change needs the store's "
                "data folder, and the right to make files in it"
            ) from error
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)


def _alive(path: Path) -> bool:
    """Whether its writer is at work; the lock of a dead one is removed."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _try_to_clean(place: Place, mine: str = "") -> None:
    """A damaged manifest of an old version must not stop a change, nor hide why one failed; what
    that version needs is unknown, so nothing is removed."""
    with suppress(StoreError):
        clean(place, mine)


def clean(place: Place, mine: str = "") -> list[str]:
    """Remove files that no version names and no living writer can be writing. The order matters:
    whoever wrote a listed file had its lock before, and publishes before it lets the lock go."""
    found = [file for file in place.list(DATA) if OURS.fullmatch(file.name)]
    manifests = place.list(MANIFESTS)
    drafts = [file for file in manifests if UNPUBLISHED.fullmatch(file.name)]
    known = {fmt.manifest_name(version) for version in fmt.versions(place)}
    short = [f for f in manifests if f.name.endswith(".json") and f.bytes == len(fmt.EXPIRED)]
    expired = [f for f in short if _is_old(f) and f"{MANIFESTS}/{f.name}" not in known]
    if isinstance(place, LocalPlace):
        folders = [p for p in place.data.glob(".sort-*") if p.is_dir()]
        locks = [f.name for f in place.list(DATA) if LOCK.fullmatch(f.name) and f.name != mine]
        if any([_alive(place.data / name) for name in locks]):  # all of them, not up to the first
            return []
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        found = [file for file in found if _is_old(file)]
        drafts = [file for file in drafts if _is_old(file)]
    named = _named(place) if found else set()
    gone = [f"{DATA}/{file.name}" for file in found if file.name not in named]
    gone += [f"{MANIFESTS}/{file.name}" for file in [*drafts, *expired]]
    for name in gone:
        place.remove(name)
    return gone


def _is_old(file: FileInfo) -> bool:
    return file.changed < time.time() - LEFTOVER_AGE


def _named(place: Place) -> set[str]:
    """Files that some version needs."""
    while True:
        manifests = [fmt.manifest_if_there(place, version) for version in fmt.versions(place)]
        if all(m is not None for m in manifests):
            return {name for m in manifests for name in _files(m)}
        # One expired meanwhile. What it shares with a version that is newer than the list must
        # stay, so the list is made again.


def _files(manifest: fmt.Manifest | None) -> list[str]:
    return [] if manifest is None else [name for run in manifest.runs for name in run.files]


# --- old versions ---------------------------------------------------------------------------------


def expire(
    place: Place,
    older_than: float | str,
    keep: int,
    pins: Sequence[str | os.PathLike[str]],
    now: float | None = None,
) -> list[int]:
    """Delete versions that were replaced longer than `older_than` ago, but for the last `keep` and
    those that pins name. Returns their numbers."""
    if keep < 1:
        raise SpecError(f"keep={keep}: the latest version cannot expire; keep at least 1")
    limit = (time.time() if now is None else now) - seconds(older_than)
    known = fmt.versions(place)
    pinned = {version for folder in pins for version in pinned_versions(place, folder)}
    old = []
    for version, following in pairwise(known[: max(0, len(known) - keep + 1)]):
        newer = fmt.manifest_if_there(place, following)
        if newer is not None and version not in pinned and newer.created <= limit:
            old.append(version)
    files = {name for version in old for name in _files(fmt.manifest_if_there(place, version))}
    with writing(place):
        for version in old:  # first what readers find a version by, then what it is made of
            place.replace(fmt.manifest_name(version), fmt.EXPIRED)
        if old and isinstance(place, LocalPlace):  # none may come back when power is lost
            sync_dir(place.root / MANIFESTS)
        for name in files - _named(place) if old else ():
            place.remove(f"{DATA}/{name}")
    return old


def seconds(age: float | str) -> float:
    """3600, "90s", "30m", "12h", "7d" or "2w"."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smhdw])\s*", str(age))
    if match is not None:
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(age, bool) or not isinstance(age, int | float) or not age >= 0:
        raise SpecError(f'{age!r} is not an age; write seconds, "30m", "12h" or "7d"')
    return float(age)


def _real(place: Place, path: str) -> str:
    """A store's path without links, of which pins and openers may know different ones."""
    return os.path.realpath(path) if isinstance(place, LocalPlace) else path


def pinned_versions(place: Place, folder: str | os.PathLike[str]) -> set[int]:
    """Versions of this store that pin files in a folder name. A pin that cannot be read is an
    error: the version it protects must not go."""
    where = Path(folder)
    if not where.is_dir():
        raise StoreError(
            f"the folder of pins {where} does not exist; name the one that enrich uses"
        )
    found, mine = set(), _real(place, place.locator()["path"])
    for path in where.rglob("*.pin"):
        try:
            pin = json.loads(path.read_text())
            if _real(place, pin["master"]) == mine:
                found.add(int(pin["version"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the pin {path} cannot be read: {error}; nothing was deleted"
            ) from error
    return found
