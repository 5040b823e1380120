"""Bases without codes and with one seed: their scale, and the best of several seeds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import FhtStructBase, PrngBlockBase
from .measure import row_ranges
from .recipe import Recipe

F32 = npt.NDArray[np.float32]


def row_rms(weights: F32) -> F32:
    """Root mean square of each row, float32[n_out]."""
    square = np.einsum("oi,oi->o", weights, weights, dtype=np.float64)
    return np.asarray(np.sqrt(square / weights.shape[1]), dtype=np.float32)


def fit_base(
    weights: F32,
    row_scale: F32,
    seed: int,
    base: PrngBlockBase | FhtStructBase,
    importance: F32 | None,
    columns: int,
) -> tuple[float, float]:
    """Least-squares scale of a base without codes over the first columns, and the squared error that it removes."""
    n_out, n_in = weights.shape
    weight = np.ones(columns, np.float32) if importance is None else importance[:columns]
    cross = square = 0.0
    for begin, end in row_ranges(n_out, n_in):
        if isinstance(base, PrngBlockBase):
            values = _core.prng_block_values(seed, begin, end, columns, base.block).astype(np.float32)
        else:
            values = _core.base_values(schema.BASE_KINDS[base.kind], seed, begin, end, n_in)[:, :columns]
        scale = row_scale[begin:end].astype(np.float64)
        rows = np.einsum("oi,oi,i->o", weights[begin:end, :columns], values, weight, dtype=np.float64)
        cross += float((rows * scale).sum())  # not np.dot: BLAS may split sums by threads
        square += float((np.einsum("oi,oi,i->o", values, values, weight, dtype=np.float64) * scale**2).sum())
    # the error is that of W itself: sum of (W − row_scale·s·v)²
    return (cross / square, cross * cross / square) if square > 0 else (0.0, 0.0)


def search_seed(
    weights: F32, row_scale: F32, base: PrngBlockBase | FhtStructBase, recipe: Recipe, importance: F32 | None
) -> int:
    """The seed of `seed_search` trials whose base removes most of the (weighted) error; the first one wins a tie."""
    n_in = weights.shape[1]
    columns = min(recipe.eval_cols or n_in, n_in)
    best, gain = recipe.seed, -1.0
    for trial in range(recipe.seed_search):
        seed = (recipe.seed + trial) % (1 << 64)
        removed = fit_base(weights, row_scale, seed, base, importance, columns)[1]
        if removed > gain:
            best, gain = seed, removed
    return best
