"""The exact join of a stream of batches with a master, within a budget of memory."""

from .conditions import Band, Compare, Predicate
from .join import SemiStreamJoin, join_batches
from .question import master_and_key, stream_of
from .stats import Stats

__all__ = [
    "Band",
    "Compare",
    "Predicate",
    "SemiStreamJoin",
    "Stats",
    "join_batches",
    "master_and_key",
    "stream_of",
]
