"""The trellis of one matrix: scales of the columns, rotation, search, and with feedback the row scales under H."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import LanesBase, TrellisBase
from ..settings.recipe import EFFORTS
from .columns import column_factor
from .feedback import BLOCK, LOOKAHEAD, Feedback, covariance_loss, refitted_row_scale
from .lanes import LOOKAHEAD as LANES_LOOKAHEAD
from .lanes import lane_groups
from .recipe import Recipe
from .row_feedback import RowFeedback, encode_in_order, gradient_error

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


def encode_trellis(
    name: str,
    weights: F32,
    base: TrellisBase | LanesBase,
    scales: npt.NDArray[np.int8] | None,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | None,
    row_feedback: RowFeedback | None = None,
) -> tuple[TrellisBase | LanesBase, Array, F32]:
    """The completed base, its codes as stored and the row scales."""
    factor = column_factor(scales)
    if feedback is None:
        options = {
            "rotation_block": base.rotation_block,
            "seed": recipe.seed,
            "importance": None if importance is None else importance * factor**2,
        }
        known, codes, fitted = _search(weights / factor, base, recipe, None, options)
        row_scale = np.asarray(fitted, np.float32)
    else:
        known, codes, row_scale = _search_with_feedback(name, weights, base, recipe, feedback, row_feedback)
    known = {key: value for key, value in known.items() if key in type(base).model_fields}
    return base.model_copy(update=known | {"column_scale": scales is not None}), codes, row_scale


Searched = tuple[dict[str, Any], Array, Array]


def _search_with_feedback(
    name: str,
    weights: F32,
    base: TrellisBase | LanesBase,
    recipe: Recipe,
    feedback: Feedback,
    row_feedback: RowFeedback | None,
) -> Searched:
    known: dict[str, Any] = {}

    def encode(rows: F32) -> tuple[Array, F32, F32]:
        options = {"importance": feedback.importance, "feedback": feedback.matrix}
        found, codes, _ = _search(rows, base, recipe, feedback, options)
        known.update(found)  # the same every time
        arguments = {
            key: known[key] for key in ("step_bits", "values_per_step", "multipliers", "lane_code") if key in known
        }
        unit = _core.Weight(
            name, *rows.shape, base_kind=schema.BASE_KINDS[base.kind], base_scale=known["scale"], codes=codes,
            row_scale=np.ones(len(rows), np.float32), **arguments,
        ).dequantize()  # fmt: skip
        return codes, refitted_row_scale(rows, unit, feedback.covariance, recipe.threads), unit

    rows = _rotated(weights, feedback)
    if row_feedback is None:
        codes, row_scale, _ = encode(rows)
    else:
        codes, row_scale = encode_in_order(rows, row_feedback, encode, "f2" if recipe.row_scale == "f16" else "f4")
    return known, codes, row_scale


def _search(
    rows: F32, base: TrellisBase | LanesBase, recipe: Recipe, feedback: Feedback | None, options: dict[str, Any]
) -> Searched:
    """Codes as stored, fitted row scales, and what the core wants to know of the base."""
    if isinstance(base, LanesBase):
        return _search_lanes(rows, base, recipe, feedback, options)
    if feedback is not None:
        options |= {"feedback_block": BLOCK, "lookahead": LOOKAHEAD}
    rate: dict[str, Any] = {"step_bits": base.step_bits, "values_per_step": base.values_per_step}
    codes, fitted, scale, multipliers = _core.trellis_encode(
        rows, state_bits=base.state_bits, threads=recipe.threads, **rate, **options
    )
    known = rate | {"scale": float(scale), "multipliers": tuple(int(m) for m in multipliers)}
    return known, np.asarray(codes).view("<i2"), fitted


def _search_lanes(
    rows: F32, base: LanesBase, recipe: Recipe, feedback: Feedback | None, options: dict[str, Any]
) -> Searched:
    code = _core.lane_codes()[base.code]
    groups = lane_groups(code, rows.shape[1], feedback=feedback is not None)
    codes, fitted = _core.lanes_encode(
        rows, code=code, groups=groups, lookahead=LANES_LOOKAHEAD, survivors=EFFORTS[recipe.effort],
        threads=recipe.threads, **options,
    )  # fmt: skip
    return {"scale": base.scale, "lane_code": base.code}, np.asarray(codes).view("i1"), fitted


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
