"""Where files are, local or in an object store: bytes by name, written whole or not at all."""

from .files import Files, FoundFile, RemoteFiles, StorageOptions, open_files
from .page_cache import room_for_files, stays_in_memory
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
    "FoundFile",
    "LocalPlace",
    "Place",
    "RemoteFiles",
    "StorageOptions",
    "StoreFile",
    "open_files",
    "place_at",
    "room_for_files",
    "stays_in_memory",
    "sync_dir",
]
