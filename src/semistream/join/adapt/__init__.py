"""Divides the memory of a running join anew, by what it measures."""

from .adapt import Adapting
from .climb import Pace
from .divide import divide_anew

__all__ = ["Adapting", "Pace", "divide_anew"]
