"""Hot master rows in memory: may answer a key early, never wrongly, and forgets at will."""

from .base import Front, Hits
from .cache import MOST_GROUP, KeyGroups
from .expiring import AgingGroups
from .segments import new_rows
from .whole import load_whole, pinned_block, pinned_front

__all__ = [
    "MOST_GROUP",
    "AgingGroups",
    "Front",
    "Hits",
    "KeyGroups",
    "load_whole",
    "new_rows",
    "pinned_block",
    "pinned_front",
]
