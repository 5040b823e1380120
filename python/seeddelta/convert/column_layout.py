"""The trellis of one matrix in column layout: rotation along the outputs, unit after unit with error feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import TrellisBase
from .feedback import ColumnFeedback, refitted_unit_scale
from .recipe import Recipe

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


def encode_columns(
    name: str, weights: F32, base: TrellisBase, recipe: Recipe, feedback: ColumnFeedback | None
) -> tuple[TrellisBase, Array, F32]:
    """The completed base, its codes as stored and the unit scales, float32 [n_in], of float32 [n_out, n_in].

    An importance of the columns would change nothing: every unit is encoded by itself, with the same bits.
    """
    units = np.ascontiguousarray(weights.T)
    if base.rotation_block > 1:
        units = np.asarray(_core.rotate(units, base.rotation_block, recipe.seed), np.float32)
    order = np.arange(len(units)) if feedback is None else feedback.order
    codes, fitted, scale, multipliers = _core.columns_encode(
        units[order],
        step_bits=base.step_bits,
        values_per_step=base.values_per_step,
        state_bits=base.state_bits,
        feedback=None if feedback is None else feedback.matrix,
        threads=recipe.threads,
    )
    back = np.argsort(order)
    codes, unit_scale = codes[back], np.asarray(fitted[back], np.float32)
    if feedback is not None:
        unit = _core.Weight(
            name, *weights.shape, base_kind=schema.BASE_KINDS["trellis"], base_scale=scale, step_bits=base.step_bits,
            values_per_step=base.values_per_step, multipliers=multipliers, codes=codes,
            row_scale=(unit_scale != 0).astype(np.float32), layout="column",
        ).dequantize()  # fmt: skip
        unit_scale = refitted_unit_scale(units, np.ascontiguousarray(unit.T), feedback.covariance)
    update = {"scale": float(scale), "multipliers": tuple(int(m) for m in multipliers)}
    return base.model_copy(update=update), codes.view("<i2"), unit_scale
