"""Where files are, local or in an object store: bytes by name, written whole or not at all."""

from .files import Files, Found, Options, RemoteFiles, open_files
from .place import (
    DATA,
    MANIFESTS,
    NEWEST,
    WRITERS,
    FileInfo,
    LocalPlace,
    Place,
    StoreFile,
    place_at,
    sync_dir,
)

__all__ = [
    "DATA",
    "MANIFESTS",
    "NEWEST",
    "WRITERS",
    "FileInfo",
    "Files",
    "Found",
    "LocalPlace",
    "Options",
    "Place",
    "RemoteFiles",
    "StoreFile",
    "open_files",
    "place_at",
    "sync_dir",
]
