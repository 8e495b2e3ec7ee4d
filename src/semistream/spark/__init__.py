"""semistream on Spark: `enrich` a DataFrame, `build_store` from a DataFrame."""

from __future__ import annotations

from .build import build_store
from .enrich import enrich

__all__ = ["build_store", "enrich"]
