"""Proc-sparse weights: the blocks that matter most in each row, nothing outside of them (docs/guide/proc-sparse.md).

Ŵ = row_scale · (base_scale · v + Δ) inside a kept block, 0 outside, with v from the hash of prng_block. Blocks are kept
by what their loss would cost; Δ is shed by size. With the covariance H of the inputs the kept weights make up for what
is lost: for every row the minimum of eᵀHe over them (Optimal Brain Surgeon, Hassibi and Stork 1993; the same step for
whole matrices in SparseGPT, Frantar and Alistarh 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.reader import weight_arguments
from ..gguf.schema import ProcSparseResidual
from ..kinds.fitting import row_rms
from ..kinds.kind import ScaledBase
from .describe import describe, head_parts
from .encode import EncodedTensor
from .feedback import covariance_error, damped_factor
from .measure import measure
from .recipe import Recipe

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def encode_proc_sparse(
    name: str,
    weights: F32,
    source_type: str,
    recipe: Recipe,
    importance: F32 | None = None,
    covariance: F32 | None = None,
) -> EncodedTensor:
    """Encode float32[n_out, n_in] by a recipe whose `proc_sparse` is on.

    `importance` is float32[n_in] with the mean 1; `covariance` float32[n_in, n_in], which chooses the blocks in its
    place.
    """
    n_out, n_in = weights.shape
    description = describe(recipe, name, (n_out, n_in), source_type)
    residual = description.residual
    assert isinstance(residual, ProcSparseResidual)
    row_scale = row_rms(weights).astype("<f2" if recipe.row_scale == "f16" else "<f4")
    wide = row_scale.astype(np.float32)[:, None]
    target = np.divide(weights, wide, out=np.zeros_like(weights), where=wide != 0).astype(np.float64)
    inverse = None if covariance is None else Inverse.of(name, covariance, recipe.hessian_damp)

    blocks = choose_blocks(
        saliency(target, residual.block, importance, inverse), residual.kept, *head_parts(recipe, name, n_out, n_in)
    )
    inside = np.repeat(blocks, residual.block, axis=1)[:, :n_in]
    base = np.zeros_like(target)
    if isinstance(description.base, ScaledBase):
        values = _core.prng_block_values(recipe.seed, 0, n_out, n_in, residual.block)
        base[inside] = values[inside] * np.float64(description.base.scale)
    entries = inside & ~hard_shed(np.where(inside, target - base, 0), recipe.proc_watermark, importance)
    hard = int((inside & ~entries).sum())
    if inverse is not None:
        target = compensate(target, np.where(entries, 0, target - base), entries, inverse)
    delta = np.where(entries, target - base, 0)
    small = entries & (np.abs(delta) < recipe.proc_shed_eps)
    delta[small] = 0
    residual = residual.model_copy(update={"trims_soft": int(small.sum()), "trims_hard": hard})
    description = description.model_copy(update={"residual": residual})

    arrays: dict[str, npt.NDArray[Any]] = {
        schema.BASE_SEED: np.array([recipe.seed], np.uint64).view("<i8"),
        schema.ROW_SCALE: row_scale,
        **_payload(delta, blocks, residual.block),
    }
    weight = _core.Weight(name, n_out, n_in, **weight_arguments(description, arrays))
    lost = None if covariance is None else covariance_error(weights, weight.dequantize(), covariance)
    norms, metrics = measure(weights, weight, importance, lost)
    method: Any = "feedback" if covariance is not None else "plain" if importance is None else "weighted"
    return EncodedTensor(description.model_copy(update={"norms": norms}), arrays, metrics, method)


@dataclass(frozen=True)
class Inverse:
    """The damped covariance and its inverse, float64 [n_in, n_in]."""

    matrix: F64
    inverse: F64

    @classmethod
    def of(cls, name: str, covariance: F32, damp: float) -> Inverse:
        upper = damped_factor(name, covariance.astype(np.float64), damp)
        half = np.linalg.inv(upper)
        return cls(upper @ upper.T, half.T @ half)


def saliency(target: F64, block: int, importance: F32 | None, inverse: Inverse | None) -> F64:
    """What the loss of each block alone would cost, float64 [n_out, blocks].

    With a covariance after the others made up for it, wᵀ (H⁻¹_bb)⁻¹ w; else Σ importance·w².
    """
    n_out, n_in = target.shape
    score = np.empty((n_out, -(-n_in // block)))
    for number, begin in enumerate(range(0, n_in, block)):
        own = slice(begin, min(begin + block, n_in))
        w = target[:, own]
        if inverse is not None:
            score[:, number] = np.einsum("oi,oi->o", w @ np.linalg.inv(inverse.inverse[own, own]), w)
        else:
            score[:, number] = np.einsum("oi,oi->o", w if importance is None else w * importance[own], w)
    return score


def choose_blocks(score: F64, kept: int, row_heads: int = 1, column_heads: int = 1) -> Mask:
    """Which blocks a row keeps, bool [n_out, blocks]: `kept` of the highest score, the first ones in a tie.

    The rows of each of `row_heads` heads choose together; each of `column_heads` equal parts of a row keeps as many.
    """
    n_out, blocks = score.shape
    if row_heads > 1:
        score = np.repeat(score.reshape(row_heads, -1, blocks).sum(axis=1), n_out // row_heads, axis=0)
    parts = score.reshape(n_out, column_heads, -1)
    order = np.argsort(-parts, axis=2, kind="stable")[:, :, : kept // column_heads]
    chosen = np.zeros(parts.shape, bool)
    np.put_along_axis(chosen, order, True, axis=2)
    return np.asarray(chosen.reshape(n_out, blocks))


def hard_shed(delta: F64, watermark: int, importance: F32 | None) -> Mask:
    """Entries beyond the `watermark` largest (weighted) of each row, bool [n_out, n_in]; the later ones in a tie."""
    size = np.abs(delta) if importance is None else np.abs(delta) * np.sqrt(importance)
    shed = np.zeros(delta.shape, bool)
    if watermark < delta.shape[1]:
        order = np.argsort(-size, axis=1, kind="stable")[:, watermark:]
        np.put_along_axis(shed, order, True, axis=1)
        shed &= delta != 0
    return shed


def compensate(target: F64, lost: F64, entries: Mask, inverse: Inverse) -> F64:
    """Rows whose free `entries` make up for the error `lost` of the others under H, float64 [n_out, n_in].

    With K the free ones and D the others, K changes by H_KK⁻¹ H_KD lost_D, which is −(H⁻¹)_KD ((H⁻¹)_DD)⁻¹ lost_D: the
    smaller of the two systems is solved.
    """
    result: F64 = target.copy()
    for row in range(len(target)):
        free = entries[row]
        fixed = np.flatnonzero(~free)
        free_at = np.flatnonzero(free)
        if fixed.size == 0 or free_at.size == 0:
            continue
        error = lost[row, fixed]
        if fixed.size <= free_at.size:
            weight = np.linalg.solve(inverse.inverse[np.ix_(fixed, fixed)], error)
            result[row, free_at] -= weight @ inverse.inverse[np.ix_(fixed, free_at)]
        else:
            push = inverse.matrix[np.ix_(free_at, fixed)] @ error
            result[row, free_at] += np.linalg.solve(inverse.matrix[np.ix_(free_at, free_at)], push)
    return result


def _payload(delta: F64, blocks: Mask, block: int) -> dict[str, npt.NDArray[Any]]:
    n_out, n_in = delta.shape
    limit = float(np.finfo(np.float16).max)
    scale = np.minimum(np.abs(delta).max(axis=1) / 127, limit).astype("<f2")
    wide = scale.astype(np.float64)[:, None]
    steps = np.divide(delta, wide, out=np.zeros_like(delta), where=wide != 0)
    padded = np.zeros((n_out, blocks.shape[1] * block), np.int8)
    padded[:, :n_in] = np.clip(np.rint(steps), -127, 127)
    return {
        schema.P_MAP: np.packbits(blocks, axis=1, bitorder="little").view(np.int8),
        schema.P_VAL: padded.reshape(n_out, -1, block)[blocks].reshape(n_out, -1, block),
        schema.P_SCALE: scale,
    }
