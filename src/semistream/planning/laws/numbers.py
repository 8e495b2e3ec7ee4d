"""What the formulas share: numbers or arrays in, the same out."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import SpecError

FloatArray: TypeAlias = NDArray[np.float64]

Numbers = TypeVar("Numbers", float, FloatArray)
"""A Python number or an array of them; what goes in comes out."""


def as_floats(value: Any) -> FloatArray:
    """The value as an array of floats, of dimension 0 for a single number."""
    return np.asarray(value, dtype=np.float64)


def like(pattern: Numbers, value: FloatArray) -> Numbers:
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
