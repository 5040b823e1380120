"""Residual scheme coo: single entries of a row, in unrotated columns."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from ..numeric import row_ranges
from .kind import F32, MAX_U16_COLUMNS, Array, Arrays, Layout, ResidualKind
from .values import half, int8_steps

D_IDX, D_VAL, D_SCALE = "d_idx", "d_val", "d_scale"
_CHECK_ELEMENTS = 1 << 20  # entries that are checked at a time


class CooResidual(ResidualKind):
    """K exact entries a row, in unrotated columns."""

    number = 0
    suffixes = (D_IDX, D_VAL, D_SCALE)
    unsigned = (D_IDX,)
    finite = (D_SCALE,)
    entries = 32
    scheme: Literal["coo"]
    K: int = Field(ge=1)
    vals: Literal["fp16", "int8"]

    @classmethod
    def describe(cls, recipe: Any, entries: int) -> CooResidual:
        return cls(scheme="coo", K=entries, vals=recipe.vals)

    @classmethod
    def room(cls, recipe: Any, n_in: int, n_out: int) -> tuple[int, int, float]:
        whole = recipe.vals == "int8"
        return n_in, (8 if whole else 16) + (16 if n_in <= MAX_U16_COLUMNS else 32), 16 if whole else 0

    def check(self, n_out: int, n_in: int) -> None:
        if n_in < self.K:
            raise ValueError(f"K is {self.K} for {n_in} columns")

    def layout(self, n_out: int, n_in: int) -> Layout:
        layout: Layout = {
            D_IDX: ((n_out, self.K), np.dtype("<i2" if n_in <= MAX_U16_COLUMNS else "<i4")),
            D_VAL: ((n_out, self.K), np.dtype("<f2" if self.vals == "fp16" else "i1")),
        }
        return layout if self.vals == "fp16" else layout | {D_SCALE: ((n_out,), np.dtype("<f2"))}

    def check_data(self, arrays: Arrays, n_in: int) -> None:
        index, value = arrays[D_IDX], arrays[D_VAL]
        for begin, end in row_ranges(len(index), index.shape[1], _CHECK_ELEMENTS):
            i, v = index[begin:end], value[begin:end]
            if int(i.max()) >= n_in:
                raise ValueError(f"d_idx has column {int(i.max())} of {n_in}")
            if not np.isfinite(v).all():
                raise ValueError("d_val has NaN or infinite values")
            # equal neighbors are padding: the last index again, with the value 0
            if not ((i[:, 1:] > i[:, :-1]) | ((i[:, 1:] == i[:, :-1]) & (v[:, 1:] == 0))).all():
                raise ValueError("d_idx does not ascend")

    def float_macs(self, n_out: int, n_in: int) -> int:
        return n_out * self.K

    def encode(self, delta: F32, row_scale: F32, importance: F32 | None, threads: int) -> dict[str, Array]:
        """The K entries of a row with the largest |Δ| or sqrt(importance)·|Δ|."""
        from .. import _core

        chosen, values = _core.coo_select(delta, self.K, importance=importance, threads=threads)
        index = chosen.astype("<i4") if delta.shape[1] > MAX_U16_COLUMNS else chosen.astype("<u2").view("<i2")
        if self.vals == "fp16":
            return {D_IDX: index, D_VAL: half(values)}
        steps, scale = int8_steps(values)
        return {D_IDX: index, D_VAL: steps, D_SCALE: scale}
