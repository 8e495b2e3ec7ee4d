"""Answers become record batches, none larger than told, and every row is counted."""

from .answers import Counters, Output
from .ordered import Reorder
from .shape import Shape, output_shape

__all__ = ["Counters", "Output", "Reorder", "Shape", "output_shape"]
