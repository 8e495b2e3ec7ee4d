"""Files of others: Parquet, and Delta tables, which are Parquet with a log."""

from __future__ import annotations

from .delta import DeltaMaster, is_delta
from .master import ParquetMaster

__all__ = ["DeltaMaster", "ParquetMaster", "is_delta"]
