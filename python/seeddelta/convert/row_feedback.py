"""Error feedback between the rows of a matrix from the covariance of the loss' gradients at its outputs.

To second order the loss grows by tr(G E H Eᵀ), E the error of the matrix, H = E[x xᵀ] of its inputs and G = E[g gᵀ] of
the gradients at its outputs (YAQA, Tseng et al. 2025). Feedback between columns takes G for a diagonal; here a row also
makes up for the errors of the rows before it, as far as the loss sees them together. With G + damping = M D Mᵀ, M unit
upper triangular, the cost is Σ_i D_i ‖e_i + Σ_{r<i} M_ri e_r‖²_H, so that row i is encoded as w_i + Σ_{r<i} M_ri e_r.
The rows with the largest gradients come first; that is an order of the encoder only.

Rows are encoded BATCH at a time: M_b = M · blockdiag(M)⁻¹ leaves out what rows of a batch owe each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ImatrixError
from .feedback import upper_factor

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]
TILE = 16  # rows whose codes stand together
# Rows encoded at a time, divided among threads. SmolLM2's blk.10.attn_q at 4 bits, tr(G E H Eᵀ) over that without
# feedback between rows: one by one .287, by 8 .293, by 16 .297, by 32 .313.
BATCH = 16
# target rows float32 [count, n_in] -> codes as stored [tiles, lines, …], row scales float32 [count], and the rows that
# these codes stand for with all scales 1, float32 [count, n_in]
EncodeBatch = Callable[[F32], tuple[Array, F32, F32]]


@dataclass(frozen=True)
class RowFeedback:
    """`order` int64 [n_out]: rows as they are encoded, BATCH at a time. `matrix` float32 [n_out, n_out]: M_b in this
    order. `gradient` float32 [n_out, n_out] is G itself, in the order of the file and without damping."""

    order: npt.NDArray[np.int64]
    matrix: F32
    gradient: F32


def make_row_feedback(name: str, gradient: F32, *, damp: float, threads: int = 0) -> RowFeedback:
    """Feedback of a matrix from its G, float32 [n_out, n_out]; `damp` is in units of the mean of its diagonal.
    `threads` (0: all cores) do not change the result.

    Raises ImatrixError naming the tensor when G is not positive.
    """
    order = np.argsort(-np.diagonal(gradient), kind="stable")
    try:
        upper = upper_factor(name, gradient, order, damp, threads)
    except ImatrixError as error:
        raise ImatrixError(
            f"the gradient covariance of {name!r} is not positive; capture it again on more text"
        ) from error
    matrix = np.zeros(upper.shape, np.float32)  # of U = M · sqrt(D): the sqrt(D) cancel
    for begin in range(0, len(upper), BATCH):
        end = min(begin + BATCH, len(upper))
        matrix[:begin, begin:end] = upper[:begin, begin:end] @ np.linalg.inv(upper[begin:end, begin:end])
    return RowFeedback(order, matrix, gradient)


def encode_in_order(rows: F32, feedback: RowFeedback, encode: EncodeBatch, stored: str) -> tuple[Array, F32]:
    """Codes [tiles, lines, …] and row scales float32 [n_out], in the order of the file, of float32 [n_out, n_in].

    `stored` is the type of the row scales in the file.
    """
    n_out = len(rows)
    error = np.zeros(rows.shape, np.float32)  # in the order of encoding
    codes: Array | None = None
    scale = np.zeros(n_out, np.float32)
    for begin in range(0, n_out, BATCH):
        own = feedback.order[begin : begin + BATCH]
        end = begin + len(own)
        target = rows[own] + feedback.matrix[:begin, begin:end].T @ error[:begin]
        batch, fitted, unit = encode(np.ascontiguousarray(target, np.float32))
        scale[own] = fitted.astype(stored)  # the errors are those of what is stored
        error[begin:end] = rows[own] - unit * scale[own][:, None]
        if codes is None:
            codes = np.zeros((-(-n_out // TILE), *batch.shape[1:]), batch.dtype)
        here = np.arange(len(own))
        _by_row(codes)[own // TILE, :, own % TILE] = _by_row(batch)[here // TILE, :, here % TILE]
    assert codes is not None
    return codes, scale


def _by_row(codes: Array) -> Array:
    """Codes as [tiles, lines, row of the tile, …]: a row's are one of equal parts of every line."""
    return codes.reshape(*codes.shape[:2], TILE, -1)


def gradient_error(rows: F32, decoded: F32, covariance: F32, gradient: F32) -> float:
    """sqrt(tr(G E H Eᵀ) / tr(G W H Wᵀ)), E = rows − decoded, W = rows: float32 [n_out, n_in]."""

    def cost(matrix: F32) -> float:
        return float(np.einsum("oi,oi->", gradient @ matrix, matrix @ covariance, dtype=np.float64))

    whole = cost(rows)
    return float(np.sqrt(max(cost(rows - decoded), 0.0) / whole)) if whole > 0 else 0.0
