"""The trellis of one matrix: scales of the columns, rotation, search, and with feedback the row scales under H."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import TrellisBase
from .columns import column_factor
from .feedback import BLOCK, LOOKAHEAD, Feedback, covariance_error, refitted_row_scale
from .recipe import Recipe

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


def encode_trellis(
    name: str,
    weights: F32,
    base: TrellisBase,
    scales: npt.NDArray[np.int8] | None,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | None,
) -> tuple[TrellisBase, Array, F32]:
    """The completed base, its codes as stored and the row scales."""
    options: dict[str, Any] = dict(
        step_bits=base.step_bits,
        values_per_step=base.values_per_step,
        state_bits=base.state_bits,
        threads=recipe.threads,
    )
    factor = column_factor(scales)
    if feedback is None:
        codes, fitted, scale, multipliers = _core.trellis_encode(
            weights / factor,
            rotation_block=base.rotation_block,
            seed=recipe.seed,
            importance=None if importance is None else importance * factor**2,
            **options,
        )
        row_scale = np.asarray(fitted, np.float32)
    else:
        rows = _rotated(weights, feedback)
        codes, fitted, scale, multipliers = _core.trellis_encode(
            rows,
            importance=feedback.importance,
            feedback=feedback.matrix,
            feedback_block=BLOCK,
            lookahead=LOOKAHEAD,
            **options,
        )
        unit = _core.Weight(
            name, *rows.shape, base_kind=schema.BASE_KINDS["trellis"], base_scale=scale, step_bits=base.step_bits,
            values_per_step=base.values_per_step, multipliers=multipliers, codes=codes,
            row_scale=np.ones(len(rows), np.float32),
        ).dequantize()  # fmt: skip
        row_scale = refitted_row_scale(rows, unit, feedback.covariance)
    base = base.model_copy(
        update={
            "scale": float(scale),
            "multipliers": tuple(int(m) for m in multipliers),
            "column_scale": scales is not None,
        }
    )
    return base, np.asarray(codes).view("<i2"), row_scale


def _rotated(weights: F32, feedback: Feedback) -> F32:
    scaled = weights if feedback.column_scale is None else weights / column_factor(feedback.column_scale)
    if feedback.rotation_block < 2:
        return scaled
    return np.asarray(_core.rotate(scaled, feedback.rotation_block, feedback.seed), np.float32)


def output_error(weights: F32, stored: _core.Weight, feedback: Feedback) -> float:
    """Relative error of the outputs under the covariance of the feedback."""
    return covariance_error(_rotated(weights, feedback), _rotated(stored.dequantize(), feedback), feedback.covariance)
