"""Old versions: which of them go, when they are told to or by themselves.

The manifest of a version that expires says so from then on, and its name stays taken as long as
another writer is at work (in an object store: for a day): a slow one who began before it must not
publish under its number, below versions that others saw.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ...errors import SpecError, StoreError
from ...safety import NotWrittenError, not_written
from ..storage import DATA, MANIFESTS, LocalPlace, Place, sync_dir
from . import format as fmt
from .writers import files_of, files_of_all, forgotten, living, try_to_clean
from .writers import writing as writing

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LOG = logging.getLogger("semistream")
Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def expire(
    place: Place,
    older_than: float | str,
    keep: int,
    pins: Sequence[str | os.PathLike[str]],
    now: float | None = None,
) -> list[int]:
    """Delete versions that were replaced longer than `older_than` ago, but for the last `keep` and
    those that pins name, and all that dead writers left. Returns the versions' numbers."""
    if keep < 1:
        raise SpecError(f"keep={keep}: the latest version cannot expire; keep at least 1")
    old = _old(place, seconds(older_than), keep, pins, time.time() if now is None else now)
    with writing(place) as me:
        _let_go(place, old)
        try_to_clean(place, me)
    return old


def keep_as_told(place: Place, manifest: fmt.Manifest) -> None:
    """A new version was published: let those expire that the store does not keep. Whatever fails
    here, the change is made; versions that could not go now go with a later one. The caller is
    known as a writer."""
    keep = manifest.keep
    if keep is None:
        return
    try:
        _let_go(place, _old(place, keep.seconds, keep.versions, keep.pins, time.time()))
        if place.remote or (isinstance(place, LocalPlace) and living(place) <= 1):
            for name in forgotten(place):
                place.remove(name)
    except (OSError, StoreError) as error:
        LOG.warning("old versions of %s stay for now: %s", place, error)


def keep_rule(keep: int | None, older_than: float | str = 0, pins: Folders = ()) -> fmt.Keep | None:
    """What a store is to keep, from the words of a call."""
    if keep is None:
        return None
    if type(keep) is not int or keep < 1:
        raise SpecError(f"keep={keep!r}: the latest version cannot expire; keep at least 1")
    folders = [os.path.abspath(folder) for folder in as_folders(pins)]
    return fmt.Keep(keep, seconds(older_than), folders)


def as_folders(pins: Folders) -> list[str | os.PathLike[str]]:
    return [pins] if isinstance(pins, str | os.PathLike) else list(pins)


def _old(
    place: Place, age: float, keep: int, pins: Sequence[str | os.PathLike[str]], now: float
) -> list[int]:
    """Versions that may go, ascending."""
    known, old = fmt.versions(place), []
    pinned = {version for folder in pins for version in pinned_versions(place, folder)}
    for version, following in pairwise(known[: max(0, len(known) - keep + 1)]):
        if version not in pinned and (age <= 0 or _made_before(place, following, now - age)):
            old.append(version)
    return old


def _made_before(place: Place, version: int, limit: float) -> bool:
    made = fmt.manifest_if_there(place, version)
    return made is not None and made.created <= limit


def _let_go(place: Place, old: list[int]) -> None:
    """First what readers find a version by goes, then what it is made of."""
    if not old:
        return
    files = {name for version in old for name in files_of(fmt.manifest_if_there(place, version))}
    _note_newest(place)
    for version in old:
        _mark_expired(place, version)
    if isinstance(place, LocalPlace):  # none may come back when power is lost
        with not_written(place.root / MANIFESTS, whole=False):
            sync_dir(place.root / MANIFESTS)
    for name in files - files_of_all(place):
        place.remove(f"{DATA}/{name}")


def _note_newest(place: Place) -> None:
    """Numbers that are given up must lie below the noted one."""
    newest = fmt.newest_manifest(place)
    if newest is not None and newest.version > fmt.noted_version(place):
        fmt.note(place, newest)


def _mark_expired(place: Place, version: int) -> None:
    name = fmt.manifest_name(version)
    try:
        with not_written(f"{place}/{name}", whole=False):
            place.replace(name, fmt.EXPIRED)
    except NotWrittenError as error:
        if error.errno != errno.ENOSPC or not isinstance(place, LocalPlace):
            raise
        # Where there is no room for eight bytes, expiring is the way to make some. Cut to its new
        # size, which is what tells an expired version, the manifest needs none.
        with not_written(f"{place}/{name}", whole=False), open(place.root / name, "r+b", 0) as file:
            file.truncate(len(fmt.EXPIRED))
            file.write(fmt.EXPIRED)
            os.fsync(file.fileno())


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
