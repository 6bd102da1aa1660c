"""Rounding to the storage types of the kernels, in NumPy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

StorageType = Literal["float32", "bfloat16", "float16"]

UNIT_ROUNDOFF: dict[StorageType, float] = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative error of one rounding to nearest."""
SMALLEST_NORMAL: dict[StorageType, float] = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""Below it, the error of a rounding is no longer relative to the value."""


def round_to(values: npt.NDArray[Any], storage: StorageType) -> npt.NDArray[np.float64]:
    """`values` rounded to nearest, ties to even, as float64. Values out of range become infinite."""
    with np.errstate(over="ignore"):
        single = np.asarray(values, dtype=np.float32)
        if storage == "float16":
            return np.asarray(values, dtype=np.float16).astype(np.float64)
    if storage == "float32":
        return single.astype(np.float64)
    bits = np.ascontiguousarray(single).view(np.uint32)
    carried = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    rounded = carried.view(np.float32).reshape(single.shape)
    return np.where(np.isnan(single), single, rounded).astype(np.float64)
