"""One matrix in column layout: rotation along the outputs, unit after unit with error feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import LanesBase
from .feedback import ColumnFeedback, refitted_input_scale
from .recipe import Recipe

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


def encode_columns(
    name: str, weights: F32, base: LanesBase, recipe: Recipe, feedback: ColumnFeedback | None
) -> tuple[Array, F32]:
    """The codes as stored and the unit scales, float32 [n_in], of float32 [n_out, n_in].

    An importance of the columns would change nothing: every unit is encoded by itself, with the same bits.
    """
    units = np.ascontiguousarray(weights.T)
    if base.rotation_block > 1:
        units = np.asarray(_core.rotate(units, base.rotation_block, recipe.seed), np.float32)
    order = np.arange(len(units)) if feedback is None else feedback.order
    matrix = None if feedback is None else feedback.matrix
    codes, fitted = _core.columns_lanes_encode(
        units[order], code=schema.lane_code(base.code), feedback=matrix, threads=recipe.threads
    )
    back = np.argsort(order)
    codes, input_scale = _reordered(codes, back, weights.shape[0]), np.asarray(fitted[back], np.float32)
    if feedback is not None:
        rotated = base.model_copy(update={"rotation_block": 0}).arguments()
        kept = (input_scale != 0).astype(np.float32)
        arrays = {schema.CODES: codes, schema.ROW_SCALE: kept}
        unit = _core.Weight(name, *weights.shape, layout="column", **rotated, arrays=arrays).dequantize()
        input_scale = refitted_input_scale(units, np.ascontiguousarray(unit.T), feedback.covariance)
    return codes.view("i1"), input_scale


def _reordered(codes: Array, order: npt.NDArray[np.intp], n_out: int) -> Array:
    """Codes of the units in another order. They are strip after strip, in each unit after unit."""
    n_in, _, lines = codes.shape
    ends = np.cumsum(schema.column_strips(n_out)) * n_in * lines
    parts = np.split(codes.reshape(-1), ends[:-1])
    moved = [part.reshape(n_in, -1)[order].reshape(-1) for part in parts]
    return np.asarray(np.concatenate(moved).reshape(codes.shape))
