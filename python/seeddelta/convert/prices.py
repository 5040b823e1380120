"""What a matrix costs the model at a rate, from its inputs and the gradients at its outputs, without encoding it.

To second order its error E adds ½ E[(gᵀ E x)²] to the divergence, which is about power / (2 n_out n_in) · tr(G E H Eᵀ)
with the moments of calibrate/moments.py. With feedback between columns and between rows tr(G E H Eᵀ) / (n_out n_in) is
mean(D_i s_i²) · mean(C_j) times the code's error for numbers of variance 1 (budget.py): D and C are the pivots of G
and of H, s_i² is the mean square of row i. All but the code's error is the price. Prices are in nats per token: the
products of price and error of all matrices add up to the divergence of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..calibrate.moments import Moments
from ..gguf import names
from .columns import column_factor
from .feedback import encoded_covariance, inverse_factor
from .lane_groups import decision_order
from .rates import lane_code
from .recipe import Recipe

F32 = npt.NDArray[np.float32]
_CODE = 4  # bits of the code in whose order the columns are taken; that of the others is alike
# Cost of errors over what the moments tell, of matrices of blocks (docs/internals/quality.md): feedback fits itself to
# the tokens that G and H are measured on, and errors at several tokens go together.
_UNSEEN = 1.75


def price(name: str, weights: F32, moments: Moments, recipe: Recipe) -> float:
    """Nats per token and unit of the code's error of a matrix, float32 [n_out, n_in], encoded by a recipe."""
    n_in = weights.shape[1]
    if not (moments.power and moments.gradient.any() and moments.inputs.any()):
        return 0.0
    power = 0.0 if name == names.EMBEDDING else recipe.covariance_power
    scales, inputs = encoded_covariance(moments.inputs, recipe.rotation_for(n_in), recipe.seed, power)
    factor = np.broadcast_to(column_factor(scales), n_in)
    square = np.einsum("oi,oi,i->o", weights, weights, factor**-2) / n_in
    columns = _pivots(name, inputs, decision_order(lane_code(_CODE), n_in)[0], recipe.hessian_damp, recipe.threads)
    rows = moments.gradient
    if rows.ndim == 2:
        order = np.argsort(-np.diagonal(rows), kind="stable")
        rows = _pivots(name, rows, order, recipe.gradient_damp, recipe.threads)
    unseen = _UNSEEN if moments.gradient.ndim == 2 else 1.0
    return float(0.5 * unseen * moments.power * (rows * square).mean() * columns.mean())


def _pivots(name: str, matrix: F32, order: npt.NDArray[np.integer[Any]], damp: float, threads: int) -> F32:
    """What feedback leaves of the cost of errors of variance 1: of feedback with damping, in the measure without it.

    With Vᵀ V = (H + d)⁻¹ an error in column i costs 1 / V_ii² by H + d, and spreads to Σ_j V_ij² / V_ii².
    """
    inverse = inverse_factor(name, matrix, order, damp, threads)
    spread = np.einsum("ij,ij->i", inverse, inverse)
    pivots = np.empty(len(order), np.float32)
    pivots[order] = (1 - damp * np.diagonal(matrix).mean() * spread) / np.diagonal(inverse) ** 2
    return pivots
