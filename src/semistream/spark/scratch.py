"""A folder on this machine that belongs to this user alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import SpecError


def scratch_folder(name: str) -> Path:
    """Nobody else may write there: what is found in it decides what a query reads."""
    root = Path(tempfile.gettempdir()) / f"semistream-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise SpecError(f"{root} belongs to someone else; name a folder with pins=...")
    folder = root / name
    folder.mkdir(exist_ok=True)
    return folder
