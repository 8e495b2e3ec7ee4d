"""Arrays by what they hold: the names that signatures use everywhere."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
U32: TypeAlias = NDArray[np.uint32]
U16: TypeAlias = NDArray[np.uint16]
U8: TypeAlias = NDArray[np.uint8]
F64: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
