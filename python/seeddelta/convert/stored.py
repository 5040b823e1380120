"""A payload under construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.reader import weight_arguments
from ..gguf.schema import NoBase, TensorDescription
from ..kinds.kind import ResidualKind
from ..numeric import row_ranges

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]


class Stored:
    """Payload under construction, decoded through the core so that fits see exactly what will be stored."""

    def __init__(self, description: TensorDescription, arrays: dict[str, Array]) -> None:
        self.description = description
        self.arrays = arrays

    def weight(self, row_scale: Array, *, residual: bool = True) -> _core.Weight:
        arrays = self.arrays | {schema.ROW_SCALE: row_scale}
        if not residual:
            arrays = {suffix: array for suffix, array in arrays.items() if suffix not in schema.RESIDUAL_SUFFIXES}
        return _core.Weight(
            self.description.name, *self.description.shape, **weight_arguments(self.description, arrays)
        )

    def add_residual(self, weights: F32, row_scale: F32, importance: F32 | None, threads: int) -> None:
        """The residual of W / row_scale − base, by the (weighted) error that it removes."""
        residual = self.description.residual
        assert isinstance(residual, ResidualKind)
        n_out, n_in = weights.shape
        ones = np.ones(n_out, np.float32)
        inverse = np.divide(1, row_scale, out=np.zeros_like(row_scale), where=row_scale != 0)
        base = None if isinstance(self.description.base, NoBase) else self.weight(ones, residual=False)
        parts = []
        for begin, end in [(0, n_out)] if residual.all_rows else row_ranges(n_out, n_in):
            delta = weights[begin:end] * inverse[begin:end, None]
            if base is not None:
                delta -= base.dequantize(begin, end)
            delta[row_scale[begin:end] == 0] = 0
            parts.append(residual.encode(delta, row_scale[begin:end], importance, threads))
        self.arrays.update({suffix: np.concatenate([part[suffix] for part in parts]) for suffix in parts[0]})

    def fit_row_scale(self, weights: F32, importance: F32 | None) -> F32:
        """Row scales that minimize the (weighted) squared error of what is stored."""
        n_out, n_in = weights.shape
        unit = self.weight(np.ones(n_out, np.float32))
        fitted = np.zeros(n_out, np.float32)
        for begin, end in row_ranges(n_out, n_in):
            stored = unit.dequantize(begin, end)
            weighted = stored if importance is None else stored * importance
            cross = np.einsum("oi,oi->o", weights[begin:end], weighted, dtype=np.float64)
            square = np.einsum("oi,oi->o", stored, weighted, dtype=np.float64)
            fitted[begin:end] = np.divide(cross, square, out=np.zeros_like(cross), where=square > 0)
        return fitted
