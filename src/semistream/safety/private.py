"""Folders and files that no other user can change: for compiled code, and for what we keep and
read back by ourselves.

A folder is private if it is ours, nobody else may write to it, and nobody else can put another one
in its place. So all folders above it count, too: each belongs to us or to root, and others may not
write to it, or it is sticky as /tmp is, where only owners rename what is theirs. They are looked at
from the root downwards: what has been looked at, nobody else can change any more.

Whatever is not private raises a PermissionError, and callers do without.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# "1": no other user is on this machine, as in most containers. Volumes of Kubernetes are writable
# for all and not sticky, and whoever runs in the container can often not change that.
SINGLE_USER = "SEMISTREAM_SINGLE_USER"
_OTHERS_WRITE, _OTHERS = 0o022, 0o077


def own_name() -> str:
    """What our folder is called where every user may have one."""
    return f"semistream-{os.geteuid()}"


def cache_home() -> Path | None:
    """The user's folder for caches, which need not exist; None where there is no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) if os.path.isabs(named) else None  # relative ones are to be ignored
    home = os.path.expanduser("~")  # as it is, for a user without an entry
    return Path(home) / ".cache" if os.path.isabs(home) and os.path.isdir(home) else None


def temporary_home() -> Path | None:
    """The folder for temporary files; None where there is none that can be written."""
    with suppress(OSError):
        return Path(tempfile.gettempdir())
    return None


def private_folder(base: str | os.PathLike[str], *names: str, secret: bool = False) -> Path:
    """The folder `names` below `base`, made where it is missing. `base` may be a link; nothing
    below it may. `secret`: nor may others read it. OSError where it cannot be used."""
    return _checked(base, names, make=True, secret=secret)


def why_not(error: OSError) -> str:
    """Why a folder cannot be used, with its name."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def is_private(base: str | os.PathLike[str], *names: str) -> bool:
    """Whether such a folder is there and private; nothing is made."""
    try:
        _checked(base, names, make=False, secret=False)
    except OSError:
        return False
    return True


def read_private(file: str | os.PathLike[str]) -> bytes:
    """The content of a file that is ours, no link, and that others cannot write."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as opened:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise _refused(f"{file} is no plain file")
        if state.st_uid != os.geteuid() or state.st_mode & _OTHERS_WRITE:
            raise _refused(_whose(Path(file), state))
        return opened.read()


def write_private(file: str | os.PathLike[str], content: bytes, sync: bool = False) -> None:
    """Write a file that others cannot read, all of it or nothing; `sync`: and durably."""
    path = Path(file)
    # The process is in the name: what it was writing when it was killed can be told.
    half = path.with_name(f"{path.name}.{uuid.uuid4().hex}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(half, flags, 0o600)
    try:
        with open(handle, "wb") as opened:
            opened.write(content)
            if sync:
                opened.flush()
                os.fsync(handle)
        os.replace(half, path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def _checked(base: str | os.PathLike[str], names: Iterable[str], make: bool, secret: bool) -> Path:
    real = Path(os.path.realpath(base))
    chain = [*reversed(real.parents), real]
    for name in names:
        chain.append(chain[-1] / name)
    for path in chain:
        state = _state(path, make)
        _check_above(path, state)
    if state.st_uid != os.geteuid() or state.st_mode & (_OTHERS if secret else _OTHERS_WRITE):
        raise _refused(_whose(path, state))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _refused(f"{path} cannot be written")
    return path


def _state(folder: Path, make: bool) -> os.stat_result:
    try:
        return os.lstat(folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # just now: made by whom, the check will tell
        os.mkdir(folder, 0o700)
    return os.lstat(folder)


def _check_above(path: Path, state: os.stat_result) -> None:
    """That nobody else can rename what is in it, nor has made it a link to elsewhere."""
    if not stat.S_ISDIR(state.st_mode):
        raise _refused(f"{path} is a link, or no folder")
    alone = state.st_mode & stat.S_ISVTX or os.environ.get(SINGLE_USER) == "1"
    shared = state.st_mode & _OTHERS_WRITE and not alone
    if state.st_uid not in (0, os.geteuid()) or shared:
        raise _refused(_whose(path, state))


def _whose(path: Path, state: os.stat_result) -> str:
    mode = stat.S_IMODE(state.st_mode)
    return f"{path} is not private: it belongs to user {state.st_uid} and has mode {mode:04o}"


def _refused(why: str) -> PermissionError:
    return PermissionError(errno.EACCES, why)
