"""Files that cannot be written, or do not hold what was written: the system's words become ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ..errors import StoreError

UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, EOFError)  # what pyarrow may say
_REMEDIES = {
    errno.ENOSPC: "free some space, and try again",
    errno.EDQUOT: "free some space, or ask for more, and try again",
    errno.EFBIG: "allow larger files (ulimit -f), and try again",
    errno.EACCES: "ask for the right to write there, and try again",
    errno.EPERM: "ask for the right to write there, and try again",
    errno.EROFS: "mount it for writing, and try again",
}


class NotWrittenError(StoreError, OSError):
    """A StoreError that is an OSError as well: who asks a full disk for its errno gets it."""

    def __init__(self, message: str, number: int | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.message, self.errno, self.strerror = message, number, reason

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        return (type(self), (self.message, self.errno, self.strerror))


@contextmanager
def not_written(path: str | os.PathLike[str], whole: bool = True) -> Iterator[None]:
    """What the system says when a file cannot be written becomes an error of ours. That a name is
    taken is for the caller to judge. `whole`: so far nothing was changed."""
    try:
        yield
    except (FileExistsError, NotWrittenError):
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "see what is wrong with it, and try again")
        reason, so_far = error.strerror or str(error), "; nothing was changed: " if whole else "; "
        message = f"{os.fspath(path)} cannot be written: {reason}{so_far}{remedy}"
        raise NotWrittenError(message, error.errno, reason) from error
