"""A folder on this machine that belongs to this user alone."""

from __future__ import annotations

from pathlib import Path

from ..errors import SpecError
from ..private import own_name, private_folder, temporary_home, why_not


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
