"""Bases without codes and with one seed: their scale, and the best of several seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..numeric import row_ranges
from .kind import F32, Array, BaseKind


def row_rms(weights: F32) -> F32:
    """Root mean square of each row, float32[n_out]."""
    square = np.einsum("oi,oi->o", weights, weights, dtype=np.float64)
    return np.asarray(np.sqrt(square / weights.shape[1]), dtype=np.float32)


class FittedBase(BaseKind):
    """A base of one seed whose scale is fitted."""

    def values(self, seed: int, begin: int, end: int, n_in: int, columns: int) -> F32:
        """The first columns of some rows of a matrix of n_in, without the scale."""
        raise NotImplementedError

    def encode(self, weights: F32, recipe: Any, importance: F32 | None) -> tuple[BaseKind, int, dict[str, Array], F32]:
        row_scale, n_in = row_rms(weights), weights.shape[1]
        columns = min(recipe.eval_cols or n_in, n_in)
        seed, gain = recipe.seed, -1.0
        for trial in range(recipe.seed_search):  # the one that removes most of the error; the first one wins a tie
            tried = (recipe.seed + trial) % (1 << 64)
            removed = self._fit(weights, row_scale, tried, importance, columns)[1]
            if removed > gain:
                seed, gain = tried, removed
        if recipe.base_scale is not None:
            return self, seed, {}, row_scale
        scale = self._fit(weights, row_scale, seed, importance, n_in)[0]
        return self.model_copy(update={"scale": scale}), seed, {}, row_scale

    def _fit(
        self, weights: F32, row_scale: F32, seed: int, importance: F32 | None, columns: int
    ) -> tuple[float, float]:
        """Least-squares scale over the first columns, and the squared error that it removes."""
        n_out, n_in = weights.shape
        weight = np.ones(columns, np.float32) if importance is None else importance[:columns]
        cross = square = 0.0
        for begin, end in row_ranges(n_out, n_in):
            values = self.values(seed, begin, end, n_in, columns)
            scale = row_scale[begin:end].astype(np.float64)
            rows = np.einsum("oi,oi,i->o", weights[begin:end, :columns], values, weight, dtype=np.float64)
            cross += float((rows * scale).sum())  # not np.dot: BLAS may split sums by threads
            square += float((np.einsum("oi,oi,i->o", values, values, weight, dtype=np.float64) * scale**2).sum())
        # the error is that of W itself: sum of (W − row_scale·s·v)²
        return (cross / square, cross * cross / square) if square > 0 else (0.0, 0.0)
