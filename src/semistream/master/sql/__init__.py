"""Tables in PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from .master import SqlMaster

__all__ = ["SqlMaster"]
