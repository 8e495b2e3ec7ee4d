"""The paged store: a folder of sorted pages, with versions. docs/store-format.md has its files."""

from __future__ import annotations

from .change import discard, null_keys, publish, publish_change, write_piece
from .duplicates import Duplicates
from .expire import writing
from .format import (
    CODE_COLUMN,
    Run,
    Shard,
    conflict,
    is_store,
    manifest_if_there,
    manifest_name,
    read_manifest,
    versions,
)
from .index import claimed
from .run import Part, PartWriter, join_parts, save_table, take_table
from .store import Store
from .write import PAGE_BYTES, StoreDesign, design, plain_batch
from .writers import clean_run

__all__ = [
    "CODE_COLUMN",
    "PAGE_BYTES",
    "Duplicates",
    "Part",
    "PartWriter",
    "Run",
    "Shard",
    "Store",
    "StoreDesign",
    "claimed",
    "clean_run",
    "conflict",
    "design",
    "discard",
    "is_store",
    "join_parts",
    "manifest_if_there",
    "manifest_name",
    "null_keys",
    "plain_batch",
    "publish",
    "publish_change",
    "read_manifest",
    "save_table",
    "take_table",
    "versions",
    "write_piece",
    "writing",
]
