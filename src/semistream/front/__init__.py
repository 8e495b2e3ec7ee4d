"""Hot master rows in memory: may answer a key early, never wrongly, and forgets at will."""

from .base import Front, Hits
from .cache import MOST_GROUP, KeyGroups
from .expiring import ExpiringGroups
from .segments import new_rows
from .table import Groups
from .whole import load_whole, pinned_block, pinned_front

__all__ = [
    "MOST_GROUP",
    "ExpiringGroups",
    "Front",
    "Groups",
    "Hits",
    "KeyGroups",
    "load_whole",
    "new_rows",
    "pinned_block",
    "pinned_front",
]
