"""semistream on Spark: `enrich` a DataFrame; build and change a store from DataFrames;
see what each micro-batch did."""

from __future__ import annotations

from .build import build_store
from .cause import cause
from .change import append_to_store, delete_from_store, upsert_into, upsert_store
from .delta_sink import into_delta
from .enrich import enrich, explain
from .masters import Master
from .progress import BatchProgress, Seconds, progress, watch
from .ship import package

__all__ = [
    "BatchProgress",
    "Master",
    "Seconds",
    "append_to_store",
    "build_store",
    "cause",
    "delete_from_store",
    "enrich",
    "explain",
    "into_delta",
    "package",
    "progress",
    "upsert_into",
    "upsert_store",
    "watch",
]
