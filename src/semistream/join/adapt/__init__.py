"""Divides the memory of a running join anew, by what it measures."""

from .adapt import Adapting, Stopwatch
from .climb import Pace
from .divide import divide_anew

__all__ = ["Adapting", "Pace", "Stopwatch", "divide_anew"]
