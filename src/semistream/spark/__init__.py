"""semistream on Spark: `enrich` a DataFrame; build and change a store from DataFrames;
see what each micro-batch did."""

from __future__ import annotations

from .build import build_store
from .cause import cause
from .change import append_to_store, delete_from_store, upsert_into, upsert_store
from .delta_sink import into_delta
from .dimensions import Dimension
from .enrich import enrich, explain
from .progress import BatchProgress, Seconds, progress, watch
from .ship import package

Master = Dimension  # as it was called first; goes with the next release

__all__ = [
    "BatchProgress",
    "Dimension",
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
