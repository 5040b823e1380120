"""Error feedback between column blocks from the covariance of a matrix' inputs.

GPTQ (Frantar et al. 2023) and LDLQ (Chee et al. 2023): what the code gets wrong in one block of columns is made up for
by the columns after it, as far as the inputs go together. Here a block is some steps of one stream of byte lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from seeddelta import _core

from ..errors import ImatrixError
from ..settings.recipe import HESSIAN_DAMP
from .columns import column_factor, column_scale
from .factor import cholesky, in_threads, invert_lower
from .lane_groups import decision_order

F32 = npt.NDArray[np.float32]
_PANEL = 512  # rows and columns that are taken at a time
_LEAST = 1e-7  # of the mean: a column that was never seen has an importance, too


@dataclass(frozen=True)
class Feedback:
    """What the encoder needs, over scaled and rotated columns.

    `matrix` float32 [n_in, n_in] has in the rows of block b and the columns after it (H⁻¹_bb)⁻¹ H⁻¹_b,rest, rows and
    columns in the order in which the encoder decides them, and in its own columns the triangle U, U Uᵀ = (H⁻¹_bb)⁻¹;
    `importance` float32 [n_in] is the diagonal of every (H⁻¹_bb)⁻¹ (what a weight's error costs once the later columns
    have made up for it); `covariance` float32 [n_in, n_in] is H itself, without damping.
    """

    matrix: F32
    importance: F32
    covariance: F32
    rotation_block: int
    seed: int
    column_scale: npt.NDArray[np.int8] | None = None


def rotated_covariance(covariance: F32, rotation_block: int, seed: int) -> F32:
    """R H Rᵀ of float32 [n_in, n_in]."""
    if rotation_block < 2:
        return np.ascontiguousarray(covariance, np.float32)
    half = _core.rotate(np.ascontiguousarray(covariance, np.float32), rotation_block, seed)
    del covariance  # it may be large, and the caller's last reference
    half = np.ascontiguousarray(half.T)
    return np.asarray(_core.rotate(half, rotation_block, seed), np.float32)


def encoded_covariance(
    covariance: F32, rotation_block: int, seed: int, column_power: float
) -> tuple[npt.NDArray[np.int8] | None, F32]:
    """Column scales by the power -`column_power` of the diagonal, None when all are 1, and the covariance of the inputs
    as they are encoded, scaled and rotated: float32 [n_in, n_in]."""
    diagonal = np.diagonal(covariance).astype(np.float32)
    scales = column_scale(np.maximum(diagonal, _LEAST * diagonal.mean()), column_power) if diagonal.any() else None
    return scales, rotated_covariance(_scaled(covariance, column_factor(scales)), rotation_block, seed)


def make_feedback(
    name: str,
    covariance: F32,
    *,
    code: _core.LaneCode,
    rotation_block: int,
    seed: int,
    damp: float = HESSIAN_DAMP,
    column_power: float = 0.0,
    threads: int = 0,
) -> Feedback:
    """Feedback of one input from its covariance, float32 [n_in, n_in], for a code of byte lanes.

    The columns are scaled by the power -`column_power` of its diagonal.

    `damp` times the mean of the diagonal is added to it; ten times more each time the matrix is not positive definite.
    `threads` (0: all cores) do not change the result. Raises ImatrixError naming the tensor when it never is.
    """
    n = covariance.shape[0]
    scales, rotated = encoded_covariance(covariance, rotation_block, seed, column_power)
    order, ends = decision_order(code, n)
    inverse = inverse_factor(name, rotated, order, damp, threads)
    matrix = np.zeros((n, n), np.float32)
    importance = np.empty(n, np.float32)
    begin = 0
    for end in ends:
        if end == begin:
            continue  # steps beyond the last column; LAPACK complains about empty matrices
        own = lapack.dtrtri(inverse[begin:end, begin:end])[0]
        matrix[begin:end, begin:end] = own
        matrix[begin:end, end:] = own @ inverse[begin:end, end:]
        importance[order[begin:end]] = np.einsum("ij,ij->i", own, own)
        begin = end
    return Feedback(matrix, importance, rotated, rotation_block, seed, scales)


@dataclass(frozen=True)
class ColumnFeedback:
    """What the encoder needs in column layout, where inputs are not rotated and are encoded one by one.

    `order` int64 [n_in] is that of the units, those of the largest inputs first. `matrix` float32 [n_in, n_in], in this
    order, has in row l and column j < l what the error of unit j changes unit l by; `covariance` float32 [n_in, n_in]
    is H itself, in the order of the file and without damping.
    """

    matrix: F32
    order: npt.NDArray[np.int64]
    covariance: F32


def make_column_feedback(name: str, covariance: F32, *, damp: float = HESSIAN_DAMP, threads: int = 0) -> ColumnFeedback:
    """Feedback of one input from its covariance, float32 [n_in, n_in]; the rest is as in `make_feedback`."""
    order = np.argsort(-np.diagonal(covariance), kind="stable")
    inverse = inverse_factor(name, covariance, order, damp, threads)
    matrix = (inverse / np.diagonal(inverse)[:, None]).T
    return ColumnFeedback(np.ascontiguousarray(matrix, np.float32), order, covariance)


def _scaled(covariance: F32, factor: F32) -> F32:
    scaled = covariance * factor
    scaled *= factor[:, None]
    return np.asarray(scaled, np.float32)


def inverse_factor(
    name: str, covariance: F32, order: npt.NDArray[np.integer[Any]], damp: float, threads: int = 0
) -> npt.NDArray[np.float64]:
    """V = U⁻¹ of `upper_factor`, upper triangular: Vᵀ V = (H + damping)⁻¹."""
    factor = _lower_factor(name, covariance, order, damp, threads)
    invert_lower(factor, threads)
    return factor[::-1, ::-1]


def upper_factor(
    name: str, covariance: F32, order: npt.NDArray[np.integer[Any]], damp: float, threads: int = 0
) -> npt.NDArray[np.float64]:
    """Upper triangular U with U Uᵀ = H + damping, float64 [n, n], columns in `order`; otherwise as `damped_factor`."""
    return _lower_factor(name, covariance, order, damp, threads)[::-1, ::-1]


def _lower_factor(
    name: str, covariance: F32, order: npt.NDArray[np.integer[Any]], damp: float, threads: int
) -> npt.NDArray[np.float64]:
    """U backwards. In place: one matrix in double precision is all that it takes."""
    n = len(covariance)
    back = order[::-1]
    mean = float(np.trace(covariance, dtype=np.float64)) / n
    while mean > 0 and damp <= 1.0:
        h = np.empty((n, n), np.float64)
        for begin in range(0, n, _PANEL):
            h[begin : begin + _PANEL] = covariance[back[begin : begin + _PANEL][:, None], back]
        h[np.diag_indices(n)] += damp * mean
        if cholesky(h, threads):
            return h
        damp *= 10
    raise ImatrixError(f"the covariance of the inputs of '{name}' is not positive; capture it again on more text")


def damped_factor(name: str, h: npt.NDArray[np.float64], damp: float) -> npt.NDArray[np.float64]:
    """Upper triangular U with U Uᵀ = H + damping, float64 [n, n].

    `damp` is in units of the mean of the diagonal. Raises ImatrixError when H is not positive.
    """
    mean = float(np.trace(h)) / len(h)
    while mean > 0 and damp <= 1.0:
        try:
            damped = h + damp * mean * np.eye(len(h))
            return np.ascontiguousarray(np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1])
        except np.linalg.LinAlgError:
            damp *= 10
    raise ImatrixError(f"the covariance of the inputs of '{name}' is not positive; capture it again on more text")


def refitted_row_scale(rows: F32, unit: F32, covariance: F32, threads: int = 0) -> F32:
    """Row scales float32 [n_out] that minimize the error of unit · scale under H.

    rows, unit: the rotated matrix and what its codes stand for with all scales 1, float32 [n_out, n_in].
    """
    scale = np.zeros(len(rows), np.float64)

    def fit(begin: int) -> None:
        panel = slice(begin, begin + _PANEL)
        weighted = unit[panel] @ covariance
        cross = np.einsum("oi,oi->o", rows[panel], weighted, dtype=np.float64)
        square = np.einsum("oi,oi->o", unit[panel], weighted, dtype=np.float64)
        np.divide(cross, square, out=scale[panel], where=square > 0)

    in_threads(fit, range(0, len(rows), _PANEL), threads)
    return np.asarray(np.maximum(scale, 0), np.float32)


def refitted_input_scale(units: F32, unit: F32, covariance: F32) -> F32:
    """Unit scales float32 [n_in] that minimize together the error of unit · scale under H.

    units, unit: W transposed and what its codes stand for with all scales 1, both rotated, float32 [n_in, n_out].
    """
    gram = (unit @ unit.T).astype(np.float64) * covariance
    cross = np.einsum("jo,jo->j", unit, covariance @ units, dtype=np.float64)
    used = np.diagonal(gram) > 0
    gram[~used] = 0
    gram[:, ~used] = 0
    # a thousandth of the mean keeps inputs that were never seen at what they would be alone
    alone = np.einsum("jo,jo->j", unit, units, dtype=np.float64)
    square = np.einsum("jo,jo->j", unit, unit, dtype=np.float64)
    ridge = 1e-3 * float(np.diagonal(covariance).mean())
    gram[np.diag_indices_from(gram)] += ridge * square + np.where(square > 0, 0.0, 1.0)
    return np.asarray(np.linalg.solve(gram, cross + ridge * alone), np.float32)


def covariance_loss(rows: F32, decoded: F32, covariance: F32, threads: int = 0) -> tuple[float, float]:
    """tr(E H Eᵀ) and tr(W H Wᵀ): the squared error of the matrix' outputs and their square, E = rows − decoded."""

    def of_panel(begin: int) -> tuple[float, float]:
        panel = slice(begin, begin + _PANEL)
        w = rows[panel]
        return _square(w - decoded[panel], covariance), _square(w, covariance)

    lost, whole = np.sum(in_threads(of_panel, range(0, len(rows), _PANEL), threads), axis=0)
    return max(float(lost), 0.0), float(whole)


def _square(rows: F32, covariance: F32) -> float:
    """tr(W H Wᵀ), H symmetric: what is above its diagonal counts twice, so that half of the products do."""
    total = 0.0
    for begin in range(0, rows.shape[1], _PANEL):
        end = begin + _PANEL
        own = rows[:, begin:end]
        half = rows[:, :begin] @ covariance[:begin, begin:end]
        half *= 2
        half += own @ covariance[begin:end, begin:end]
        total += float(np.einsum("oi,oi->", half, own, dtype=np.float64))
    return total


def covariance_error(rows: F32, decoded: F32, covariance: F32) -> float:
    """sqrt(tr(E H Eᵀ) / tr(W H Wᵀ)): error of the matrix' outputs over their size."""
    return relative_loss(*covariance_loss(rows, decoded, covariance))


def relative_loss(lost: float, whole: float) -> float:
    """The relative error of the outputs, from their squares, in float32: the products have no more digits."""
    return float(np.float32(np.sqrt(lost / whole))) if whole > 0 else 0.0
