"""Where a streaming query keeps its pins."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

from ..errors import SpecError
from ..safety import address
from .task import PinFolder, scratch_folder

FOLDER = "semistream-pins"


def pins_folder(df: DataFrame, pins: str | os.PathLike[str] | None) -> PinFolder:
    """The folder that was asked for; else one beside the session's checkpoints; else, where all
    tasks are on this machine, one of this user's."""
    if pins is not None:
        path = local_path(os.fspath(pins))
        if path is None:
            raise SpecError(
                f"pins={address(os.fspath(pins))!r} is not a folder: name one that all executors "
                "have"
            )
        return _made(path)
    conf = df.sparkSession.conf
    checkpoints = conf.get("spark.sql.streaming.checkpointLocation", None)
    beside = None if not checkpoints else local_path(checkpoints)
    if beside is not None:
        return _made(beside / FOLDER)
    if (conf.get("spark.master", "") or "").startswith("local"):
        return _made(scratch_folder("pins"))
    shown = repr(address(checkpoints)) if checkpoints else None
    raise SpecError(
        "a stream notes the version of each micro-batch in a folder that all executors reach, and "
        f"none is known (spark.sql.streaming.checkpointLocation is {shown}); name one with "
        "pins=..., or fix the version with version=..."
    )


def local_path(where: str) -> Path | None:
    """A plain path or a file: URI as a path; None for anything else."""
    if "://" in where and not where.startswith("file:"):
        return None
    parts = urlsplit(where)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in ("hdfs", "dbfs") else Path(where).absolute()


def _made(path: Path) -> PinFolder:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"the folder of pins {path} cannot be made: {error.strerror}; name another: pins=..."
        ) from error
    return PinFolder.at(str(path))
