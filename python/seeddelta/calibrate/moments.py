"""What the tokens of a text say of a matrix: the second moments of its inputs and of the gradients at its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_CUT = 0.99  # quantile at which the power of tokens is cut
_TINY = 1e-60


@dataclass(frozen=True)
class Moments:
    """`gradient` float32 [n_out, n_out] is E[g gᵀ / ‖g‖], `inputs` float32 [n_in, n_in] is E[x xᵀ / ‖x‖²], both with a
    mean diagonal of 1, or all 0; `power` is E[‖g‖² ‖x‖²], with the largest values cut. Of an output matrix, where
    gradients of different tokens of the vocabulary hardly go together, `gradient` is the diagonal alone [n_vocab]."""

    gradient: F32
    inputs: F32
    power: float


# name of a matrix, the matrix and its moments -> what its errors cost the model (see convert/prices.py)
Price = Callable[[str, F32, Moments], float]


@dataclass(frozen=True)
class ChunkMoments:
    """What a chunk of text adds to the moments of the matrices of a block."""

    gradients: dict[str, F32] = field(default_factory=dict)  # g / ‖g‖^½ of each matrix, [tokens, n_out]
    inputs: dict[str, F32] = field(default_factory=dict)  # x / ‖x‖ of the first matrix that reads it, [tokens, n_in]
    first: dict[str, str] = field(default_factory=dict)  # that matrix, of each
    power: dict[str, F64] = field(default_factory=dict)  # ‖g‖² ‖x‖², [tokens]


def chunk_moments(seen: dict[str, tuple[F32, F32]], *, inputs: bool) -> ChunkMoments:
    """Of the gradients and the inputs of matrices, [tokens, n_out] and [tokens, n_in]; or without the `inputs`."""
    found = ChunkMoments()
    known: dict[int, tuple[str, F64]] = {}  # of an input: its first matrix, and ‖x‖²
    for kind, (g, x) in seen.items():
        if id(x) not in known:
            unit, square = unit_rows(x)
            known[id(x)] = kind, square
            if inputs:
                found.inputs[kind] = unit
        found.first[kind], x_square = known[id(x)]
        g_square = np.square(g).sum(-1, keepdims=True, dtype=np.float64)
        found.gradients[kind] = np.asarray(g / np.maximum(g_square, _TINY) ** 0.25, np.float32)
        found.power[kind] = (g_square * x_square).ravel()
    return found


def unit_rows(x: F32) -> tuple[F32, F64]:
    """x / ‖x‖ of every token, and ‖x‖² [tokens, 1]."""
    square = np.square(x).sum(-1, keepdims=True, dtype=np.float64)
    return np.asarray(x / np.maximum(square, _TINY) ** 0.5, np.float32), square


def cut_mean(power: F64) -> float:
    """Mean over the tokens, of which the largest hundredth count as the least of them.

    A few tokens, the first of a text above all, have gradients or activations hundreds of times as large as those of
    others. All of them see nearly the same input, whose one error is not the mean of many. With the plain mean the
    price of SmolLM2's blk.4.attn_v is three times too high beside those of other matrices.
    """
    return float(np.minimum(power, np.quantile(power, _CUT)).mean())


def unit_diagonal(sums: F32) -> F32:
    """A symmetric matrix over the mean of its diagonal; itself when that is 0."""
    mean = np.diagonal(sums).mean(dtype=np.float64)
    if mean == 0:
        return sums
    return np.asarray((sums + sums.T) / (2 * mean), np.float32)
