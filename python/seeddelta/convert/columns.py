"""Scales of the columns before the rotation: those whose error costs more are made larger, so that they err less.

Like AWQ (Lin et al. 2023), which scales weights by a power of their inputs' size; here as a part of the format, in
eighths of an octave (docs/reference/format.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
_STEPS = 8  # of an octave


def column_scale(importance: F32, power: float) -> npt.NDArray[np.int8] | None:
    """What the inputs are multiplied by, int8[n_in]: importance^-power over its geometric mean; None when all are 1.

    The weights are divided by it.
    """
    octaves = -power * np.log2(importance, dtype=np.float64)
    scale = np.clip(np.rint(_STEPS * (octaves - octaves.mean())), -127, 127).astype(np.int8)
    return scale if scale.any() else None


def column_factor(scale: npt.NDArray[np.int8] | None) -> F32:
    """float32[n_in], or [1] without scales: 2^(scale / 8), the very numbers of the run time."""
    if scale is None:
        return np.ones(1, np.float32)
    eighths = np.exp2(np.arange(_STEPS) / _STEPS).astype(np.float32)
    return np.asarray(np.ldexp(eighths[scale % _STEPS], scale.astype(np.int32) // _STEPS), np.float32)
