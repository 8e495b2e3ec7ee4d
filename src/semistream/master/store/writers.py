"""Writers at work, and files that dead ones left behind.

While a writer works, a file of its own lies in the store's folder `writers`, with a lock on it. Its
death ends the lock, whatever killed it, and leaves the file: the next writer then looks for what no
version names, and removes it. Where nobody died nothing is looked for, since that means to read the
manifests of all versions. In an object store there are no locks: there, a writer's file that is a
day old is that of a dead one, and files that no version names go when they are that old.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ConflictError, StoreError
from ..storage import DATA, MANIFESTS, WRITERS, FileInfo, LocalPlace, Place
from . import format as fmt

OURS = re.compile(r"\.?[0-9a-f]{32}[-.].*|\.sort-.*")  # names that writers of stores give
UNPUBLISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")  # a manifest on its way
WRITER = re.compile(r"[0-9a-f]{32}\.lock")
EARLIER = re.compile(r"\.writer-[0-9a-f]{32}\.lock")  # where locks were before: in the data folder
LEFTOVER_AGE = 86_400.0  # seconds, where locks are impossible


@contextmanager
def writing(place: Place, new: bool = False) -> Iterator[str]:
    """Be known as a writer, by the name of a file; clean up behind those who died, and behind
    oneself after a failure. `new`: there is no store yet."""
    name = f"{WRITERS}/{uuid.uuid4().hex}.lock"
    handle = _take(place, name, new)
    tidy = False  # whether nothing can be left of this writer's work: else its file stays
    try:
        if _someone_died(place, name):
            try_to_clean(place, name)
        yield name
        tidy = True
    except BaseException as error:
        late = isinstance(error, ConflictError) and error.__cause__ is None
        tidy = late or try_to_clean(place, name)  # who is late takes its run back before
        raise
    finally:
        try:
            if tidy:
                with suppress(OSError, StoreError):
                    place.remove(name)
        finally:
            if handle is not None:
                os.close(handle)


# --- who is at work -------------------------------------------------------------------------------


def _take(place: Place, name: str, new: bool) -> int | None:
    """A file of one's own, locked where that is possible."""
    if isinstance(place, LocalPlace):
        return _lock(place.root / name, place if new else None)
    place.mark(name)
    return None


def _lock(path: Path, new: Place | None) -> int:
    """A new file, locked. Someone who cleans up may remove it before the lock is on it, and someone
    who fails to make a store at the same place may remove the folder."""
    while True:
        try:
            with suppress(FileExistsError):
                path.parent.mkdir()
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if new is not None and isinstance(error, FileNotFoundError):
                new.prepare()
                continue
            raise StoreError(
                f"{path.parent.parent} cannot be written to: {error.strerror}; a change needs the "
                "right to make files in the store's folders"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(handle).st_ino:
                    return handle
        except OSError as error:
            os.close(handle)
            path.unlink(missing_ok=True)
            raise StoreError(
                f"{path} cannot be locked: {error.strerror}; a store in a folder needs a file "
                "system with locks (flock)"
            ) from error
        os.close(handle)


def _alive(path: Path) -> bool:
    """Whether its writer is at work. Whoever's lock cannot be looked at is."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


def _writers(place: Place) -> list[FileInfo]:
    return [file for file in place.list(WRITERS) if WRITER.fullmatch(file.name)]


def _name(file: FileInfo) -> str:
    return f"{WRITERS}/{file.name}"


def _is_dead(place: Place, file: FileInfo) -> bool:
    """In an object store: its last files are a day old as well by then."""
    if isinstance(place, LocalPlace):
        return not _alive(place.root / WRITERS / file.name)
    return _is_old(file, 2 * LEFTOVER_AGE)


def _bury(place: Place, name: str) -> None:
    """Remove a dead writer's file, unless it turns out to be that of one who has just come."""
    if not isinstance(place, LocalPlace):
        place.remove(name)
        return
    with suppress(OSError):
        handle = os.open(place.root / name, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            place.remove(name)
        finally:
            os.close(handle)


def _someone_died(place: Place, mine: str) -> bool:
    return any(_is_dead(place, file) for file in _writers(place) if _name(file) != mine)


def living(place: LocalPlace) -> int:
    """How many writers are at work, those of earlier releases too."""
    locks = [place.root / WRITERS / file.name for file in _writers(place)]
    locks += [place.data / f.name for f in place.list(DATA) if EARLIER.fullmatch(f.name)]
    return sum(_alive(path) for path in locks)


# --- what dead ones left --------------------------------------------------------------------------


def try_to_clean(place: Place, mine: str) -> bool:
    """A damaged manifest of an old version must not stop a change, nor hide why one failed; what
    that version needs is unknown, so nothing is removed. False: something may be left."""
    try:
        return clean(place, mine) is not None and not place.remote
    except (OSError, StoreError):
        return False


def clean(place: Place, mine: str = "") -> list[str] | None:
    """Remove files that no version names and no living writer can be writing; returns their names,
    None where writers are at work. The order matters: whoever wrote a listed file had its lock
    before, and publishes before it lets the lock go."""
    dead = [name for f in _writers(place) if _is_dead(place, f) and (name := _name(f)) != mine]
    found = [file for file in place.list(DATA) if OURS.fullmatch(file.name)]
    drafts = [file for file in place.list(MANIFESTS) if UNPUBLISHED.fullmatch(file.name)]
    if isinstance(place, LocalPlace):
        folders = [p for p in place.data.glob(".sort-*") if p.is_dir()]
        if living(place) > (place.size(mine) is not None if mine else 0):
            return None
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        found = [file for file in found if _is_old(file)]
        drafts = [file for file in drafts if _is_old(file)]
    if found:
        fmt.newest_manifest(place)  # where it is lost, its files are not: it may be found again
    named = files_of_all(place) if found else set()
    gone = [f"{DATA}/{file.name}" for file in found if file.name not in named]
    gone += [f"{MANIFESTS}/{file.name}" for file in drafts]
    gone += forgotten(place)
    for name in gone:
        place.remove(name)
    for name in dead:
        _bury(place, name)
    return gone


def clean_run(place: Place, run: fmt.Run) -> None:
    """Remove what tasks that died, or were repeated, left of a run that is complete. In an object
    store others do so, a day later."""
    if not isinstance(place, LocalPlace):
        return
    needed = set(run.files)
    for file in place.list(DATA):
        if file.name.lstrip(".").startswith(f"{run.id}-") and file.name not in needed:
            place.remove(f"{DATA}/{file.name}")


def forgotten(place: Place) -> list[str]:
    """Names of expired versions that need not be kept any more: no writer who could still take one
    of them is at work (or, in an object store, they are a day old). Those above the noted version
    stay, so that from there on no number is missing."""
    noted = fmt.noted_version(place)
    numbers = [(fmt.number_of(file), file) for file in place.list(MANIFESTS)]
    return [
        f"{MANIFESTS}/{file.name}"
        for n, file in numbers
        if n is not None
        and n < noted
        and file.bytes == len(fmt.EXPIRED)
        and (not place.remote or _is_old(file))
    ]


def _is_old(file: FileInfo, age: float | None = None) -> bool:
    return file.changed < time.time() - (LEFTOVER_AGE if age is None else age)


def files_of_all(place: Place) -> set[str]:
    """Files that some version needs."""
    while True:
        manifests = [fmt.manifest_if_there(place, version) for version in fmt.versions(place)]
        if all(m is not None for m in manifests):
            return {name for m in manifests for name in files_of(m)}
        # One expired meanwhile. What it shares with a version that is newer than the list must
        # stay, so the list is made again.


def files_of(manifest: fmt.Manifest | None) -> list[str]:
    return [] if manifest is None else [name for run in manifest.runs for name in run.files]
