"""semistream on Spark: `enrich` a DataFrame; build and change a store from DataFrames."""

from __future__ import annotations

from ..packing import package
from .build import build_store
from .cause import cause
from .change import append_to_store, delete_from_store, upsert_into, upsert_store
from .enrich import enrich
from .masters import Master

__all__ = [
    "Master",
    "append_to_store",
    "build_store",
    "cause",
    "delete_from_store",
    "enrich",
    "package",
    "upsert_into",
    "upsert_store",
]
