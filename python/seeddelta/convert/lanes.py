"""The byte lanes of one matrix: scales of the columns, rotation, search, and with feedback the row scales under H."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf.schema import CODES, ROW_SCALE, LanesBase, lane_code
from ..settings.recipe import EFFORTS
from .columns import column_factor
from .feedback import Feedback, covariance_loss, refitted_row_scale
from .lane_groups import LOOKAHEAD, lane_groups
from .recipe import Recipe
from .row_feedback import RowFeedback, encode_in_order, gradient_error

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


def encode_lanes(
    name: str,
    weights: F32,
    base: LanesBase,
    scales: npt.NDArray[np.int8] | None,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | None,
    row_feedback: RowFeedback | None = None,
) -> tuple[LanesBase, Array, F32]:
    """The completed base, its codes as stored and the row scales."""
    base = base.model_copy(update={"column_scale": scales is not None})
    if feedback is not None:
        return base, *_search_with_feedback(name, weights, base, recipe, feedback, row_feedback)
    factor = column_factor(scales)
    codes, row_scale = _search(
        weights / factor,
        base,
        recipe,
        rotation_block=base.rotation_block,
        seed=recipe.seed,
        importance=None if importance is None else importance * factor**2,
    )
    return base, codes, np.asarray(row_scale, np.float32)


def _search_with_feedback(
    name: str, weights: F32, base: LanesBase, recipe: Recipe, feedback: Feedback, row_feedback: RowFeedback | None
) -> tuple[Array, F32]:
    unscaled = base.model_copy(update={"rotation_block": 0, "column_scale": False})

    def encode(rows: F32) -> tuple[Array, F32, F32]:
        codes, _ = _search(rows, base, recipe, importance=feedback.importance, feedback=feedback.matrix)
        arrays = {CODES: codes, ROW_SCALE: np.ones(len(rows), np.float32)}
        unit = _core.Weight(name, *rows.shape, **unscaled.arguments(), arrays=arrays).dequantize()
        return codes, refitted_row_scale(rows, unit, feedback.covariance, recipe.threads), unit

    rows = _rotated(weights, feedback)
    if row_feedback is not None:
        return encode_in_order(rows, row_feedback, encode, "f2" if recipe.row_scale == "f16" else "f4")
    codes, row_scale, _ = encode(rows)
    return codes, row_scale


def _search(rows: F32, base: LanesBase, recipe: Recipe, **options: Any) -> tuple[Array, Array]:
    """Codes as stored and fitted row scales."""
    code = lane_code(base.code)
    groups = lane_groups(code, rows.shape[1], feedback="feedback" in options)
    codes, fitted = _core.lanes_encode(
        rows, code=code, groups=groups, lookahead=LOOKAHEAD, beam_width=EFFORTS[recipe.effort], threads=recipe.threads,
        **options,
    )  # fmt: skip
    return np.asarray(codes).view("i1"), fitted


def _rotated(weights: F32, feedback: Feedback) -> F32:
    scaled = weights if feedback.column_scale is None else weights / column_factor(feedback.column_scale)
    if feedback.rotation_block < 2:
        return scaled
    return np.asarray(_core.rotate(scaled, feedback.rotation_block, feedback.seed), np.float32)


def output_loss(weights: F32, stored: _core.Weight, feedback: Feedback, threads: int) -> tuple[float, float]:
    """Squared error of the outputs, and their square, under the covariance of the feedback."""
    rows, decoded = (_rotated(matrix, feedback) for matrix in (weights, stored.dequantize()))
    return covariance_loss(rows, decoded, feedback.covariance, threads)


def loss_error(weights: F32, stored: _core.Weight, feedback: Feedback, row_feedback: RowFeedback) -> float:
    """The same, with the outputs weighted by the covariance of their gradients."""
    rows, decoded = (_rotated(matrix, feedback) for matrix in (weights, stored.dequantize()))
    return gradient_error(rows, decoded, feedback.covariance, row_feedback.gradient)
