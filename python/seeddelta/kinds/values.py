"""Values of a residual as they are stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .kind import F32


def half(values: F32) -> npt.NDArray[np.float16]:
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(values, -limit, limit).astype("<f2")


def int8_steps(values: F32) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """int8 steps and the float16 scale of each last axis."""
    scale = half(np.abs(values).max(axis=-1) / np.float32(127))
    wide = scale.astype(np.float32)[..., None]
    steps = np.divide(values, wide, out=np.zeros_like(values), where=wide != 0)
    return np.clip(np.rint(steps), -127, 127).astype(np.int8), scale
