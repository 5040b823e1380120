"""One matrix → description, payload and metrics.

Ŵ = row_scale · (base_scale · V·R + Δ). The base is fitted first, Δ holds the largest entries of what it leaves, and the
row scales are fitted last, by least squares, to what is stored (design.md; seeddelta.txt sections 2.1-2.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf import payload, schema
from ..gguf.schema import LanesBase, NoResidual, Norms, TensorDescription
from ..kinds.fitting import row_rms
from ..kinds.kind import Base, BaseKind
from .column_layout import encode_columns
from .columns import column_scale
from .describe import describe
from .feedback import ColumnFeedback, Feedback, covariance_loss, relative_loss
from .lanes import encode_lanes, loss_error, output_loss
from .measure import measure, metrics_of
from .recipe import Recipe
from .report import Method, Metrics
from .row_feedback import RowFeedback
from .stored import Stored

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncodedTensor:
    """Result for one matrix. `arrays` maps suffix -> payload in its stored dtype, in file order; `outputs` are the
    squared error of the outputs and their square where a covariance tells them (see `covariance_loss`)."""

    description: TensorDescription
    arrays: dict[str, Array]
    metrics: Metrics
    method: Method = "plain"
    outputs: tuple[float, float] | None = None


def encode_tensor(
    name: str,
    weights: F32,
    source_type: str,
    recipe: Recipe,
    importance: F32 | None = None,
    feedback: Feedback | ColumnFeedback | None = None,
    row_feedback: RowFeedback | None = None,
) -> EncodedTensor:
    """Encode float32[n_out, n_in] by the recipe; `importance` is float32[n_in] with the mean 1.

    Or float32[experts, n_out, n_in], with an importance of float32[experts, n_in]; every expert is encoded by itself,
    with the same feedback.
    The result depends on the arguments and on nothing else (not on `recipe.threads`). With `feedback` (byte lanes only)
    the error of the outputs is minimized, with `row_feedback` beside it (a matrix in rows, no residual) the loss that
    this error causes.
    """
    if recipe.has_codes and recipe.seed_search > 1:  # other signs of the rotation
        single = recipe.model_copy(update={"seed_search": 0})
        trials = (
            encode_tensor(name, weights, source_type, seeded, importance)
            for seeded in (
                single.model_copy(update={"seed": (recipe.seed + trial) % (1 << 64)})
                for trial in range(recipe.seed_search)
            )
        )
        return min(trials, key=lambda encoded: encoded.metrics.rel_l2_w)  # the first one wins a tie
    if weights.ndim == 2:
        return _encode_matrix(name, weights, source_type, recipe, importance, feedback, row_feedback)
    describe(recipe, name, weights.shape[1:], source_type, len(weights))  # raises for what experts cannot have
    own = [None] * len(weights) if importance is None else importance
    return join_experts(
        [_encode_matrix(name, w, source_type, recipe, i, feedback) for w, i in zip(weights, own, strict=True)]
    )


def join_experts(encoded: Sequence[EncodedTensor]) -> EncodedTensor:
    """One tensor from the matrices of its experts, which were encoded by the same recipe."""
    first = encoded[0].description
    if isinstance(first.base, LanesBase) and any(schema.COLUMN_SCALE in one.arrays for one in encoded):
        flat = {schema.COLUMN_SCALE: np.zeros(first.shape[1], np.int8)}  # of an expert whose columns matter alike
        encoded = [replace(one, arrays=flat | one.arrays) for one in encoded]
        first = first.model_copy(update={"base": first.base.model_copy(update={"column_scale": True})})
    norms, metrics = join_norms(encoded)
    arrays = {
        suffix: array if suffix == schema.BASE_SEED else np.concatenate([one.arrays[suffix] for one in encoded])
        for suffix, array in encoded[0].arrays.items()
    }
    description = first.model_copy(update={"experts": len(encoded), "norms": norms})
    arrays = {suffix: arrays[suffix] for suffix in payload.payload_layout(description)}
    return EncodedTensor(description, arrays, metrics, encoded[0].method)


def join_norms(encoded: Sequence[EncodedTensor], rel_out: float | None = None) -> tuple[Norms, Metrics]:
    """Of all of them together, with the relative error of the outputs where it is known."""
    norms = Norms(rel_out=rel_out, **{
        name: float(np.sqrt(sum(getattr(one.description.norms, name) ** 2 for one in encoded)))
        for name in Norms.model_fields
        if name != "rel_out"
    })  # fmt: skip
    cross, cross_w = (
        sum(getattr(one.metrics, c) * getattr(one.description.norms, w) * getattr(one.description.norms, w_hat)
            for one in encoded)
        for c, w, w_hat in (("cos", "w", "w_hat"), ("cos_w", "w_w", "w_hat_w"))
    )  # fmt: skip
    return norms, metrics_of(norms, cross, cross_w)


def _encode_base(
    name: str,
    weights: F32,
    description: TensorDescription,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | ColumnFeedback | None,
    row_feedback: RowFeedback | None,
) -> tuple[Base, int, dict[str, Array], F32]:
    """The base with what was fitted, its seed, its arrays, and the row scales float32 [n_out]."""
    base, seed = description.base, recipe.seed
    if description.is_column:
        assert isinstance(base, LanesBase)
        assert not isinstance(feedback, Feedback)
        codes, row_scale = encode_columns(name, weights, base, recipe, feedback)
        return base, seed, {schema.CODES: codes}, row_scale
    if isinstance(base, LanesBase):
        assert not isinstance(feedback, ColumnFeedback)
        scales = None
        if feedback is not None:
            scales = feedback.column_scale
        elif importance is not None:
            scales = column_scale(importance, recipe.column_power or 0.0)
        base, codes, row_scale = encode_lanes(name, weights, base, scales, recipe, importance, feedback, row_feedback)
        return base, seed, {schema.CODES: codes} | ({} if scales is None else {schema.COLUMN_SCALE: scales}), row_scale
    if isinstance(base, BaseKind):
        return base.encode(weights, recipe, importance)
    return base, seed, {}, row_rms(weights)


def _encode_matrix(
    name: str,
    weights: F32,
    source_type: str,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | ColumnFeedback | None,
    row_feedback: RowFeedback | None = None,
) -> EncodedTensor:
    n_out, n_in = weights.shape
    description = describe(recipe, name, (n_out, n_in), source_type)
    base, seed, arrays, row_scale = _encode_base(name, weights, description, recipe, importance, feedback, row_feedback)
    description = description.model_copy(update={"base": base})
    arrays = {schema.BASE_SEED: np.array([seed], np.uint64).view("<i8"), **arrays}

    stored = Stored(description, arrays)
    residual = not isinstance(description.residual, NoResidual)
    if not base.scales_rows():
        row_scale = stored.fit_row_scale(weights, importance)
    if residual:
        stored.add_residual(weights, row_scale, importance, recipe.threads)
    if residual or (description.row_scale == "f32" and feedback is None and not description.is_column):
        row_scale = stored.fit_row_scale(weights, importance)
    arrays[schema.ROW_SCALE] = row_scale.astype("<f2" if description.row_scale == "f16" else "<f4")

    weight = stored.weight(arrays[schema.ROW_SCALE])
    outputs = None
    if isinstance(feedback, ColumnFeedback):
        outputs = covariance_loss(weights, weight.dequantize(), feedback.covariance, recipe.threads)
    elif feedback is not None:
        outputs = output_loss(weights, weight, feedback, recipe.threads)
    norms, metrics = measure(weights, weight, importance, None if outputs is None else relative_loss(*outputs))
    description = description.model_copy(update={"norms": norms})
    ordered = {suffix: arrays[suffix] for suffix in payload.payload_layout(description)}
    weighted = importance is not None and not description.is_column
    method: Method = "feedback" if feedback is not None else "weighted" if weighted else "plain"
    if row_feedback is not None:
        assert isinstance(feedback, Feedback)
        method = "row feedback"
        metrics = metrics.model_copy(update={"rel_grad": loss_error(weights, weight, feedback, row_feedback)})
    return EncodedTensor(description, ordered, metrics, method, outputs)
