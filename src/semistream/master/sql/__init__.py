"""Tables in PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from .address import is_database, sql_spec
from .master import SqlMaster

__all__ = ["SqlMaster", "is_database", "sql_spec"]
