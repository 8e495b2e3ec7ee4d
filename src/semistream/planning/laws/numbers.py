"""What the formulas share: numbers or arrays in, the same out."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np

from ...errors import SpecError
from ...kernels.arrays import F64

Numbers = TypeVar("Numbers", float, F64)
"""A Python number or an array of them; what goes in comes out."""


def as_floats(value: Any) -> F64:
    """The value as an array of floats, of dimension 0 for a single number."""
    return np.asarray(value, dtype=np.float64)


def like(pattern: Numbers, value: F64) -> Numbers:
    """``value`` as a Python float where it is a single number, else as the array it is."""
    return cast(Numbers, float(value) if value.ndim == 0 else value)


def require_skew(skew: float) -> None:
    """Refuse an exponent for which the sums are not those of a Zipf law."""
    if not 0 <= skew <= 10:
        raise SpecError(f"skew is {skew}; a Zipf exponent lies between 0 (uniform) and 10")


def require_at_least(name: str, value: float, least: float) -> None:
    """Refuse a size below the least that has a meaning."""
    if not value >= least:
        raise SpecError(f"{name} is {value}; it must be at least {least}")
