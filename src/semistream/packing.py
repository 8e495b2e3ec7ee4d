"""The package as a zip file, for Spark to ship to executors that do not have it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from .errors import SpecError

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same package gives the same bytes


def package(path: str | os.PathLike[str]) -> Path:
    """Write semistream itself to a new zip file, for `--py-files` or `SparkContext.addPyFile`.

    What it needs (pyarrow, numpy, numba, google-crc32c) is compiled code, which Python cannot
    import from a zip: that must be installed where the file goes.
    """
    target = Path(path)
    if target.suffix != ".zip":
        raise SpecError(f"{target} must end with .zip: Python imports from no other name")
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, source in sorted(_sources(files(__package__), __package__)):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
    except FileExistsError:
        raise SpecError(f"{target} exists already; delete it or choose another name") from None
    except OSError as error:
        raise SpecError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".typed")):
            yield f"{name}/{entry.name}", entry.read_bytes()
