"""The paged store: a folder of sorted pages, with versions. docs/store-format.md has its files."""

from __future__ import annotations

from .store import Store

__all__ = ["Store"]
