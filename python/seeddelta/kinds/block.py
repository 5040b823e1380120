"""Residual scheme block: blocks of neighboring columns of a row, in unrotated columns."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from .kind import F32, Array, Arrays, Layout, ResidualKind, check_kept
from .values import half, int8_steps

B_MAP, B_VAL, B_SCALE = "b_map", "b_val", "b_scale"


class BlockResidual(ResidualKind):
    """`kept` blocks of `block` neighboring columns a row, in unrotated columns."""

    number = 1
    suffixes = (B_MAP, B_VAL, B_SCALE)
    unsigned = (B_MAP,)
    finite = (B_SCALE,)
    entries = 1
    scheme: Literal["block"]
    block: Literal[32, 64]
    kept: int = Field(ge=1)
    vals: Literal["fp16", "int8"]

    @classmethod
    def describe(cls, recipe: Any, entries: int) -> BlockResidual:
        return cls(scheme="block", block=32 if recipe.block == 32 else 64, kept=entries, vals=recipe.vals)

    @classmethod
    def room(cls, recipe: Any, n_in: int, n_out: int) -> tuple[int, int, float]:
        bits = recipe.block * 8 + 16 if recipe.vals == "int8" else recipe.block * 16
        return -(-n_in // recipe.block), 16 + bits, 0

    def check(self, n_out: int, n_in: int) -> None:
        check_kept(self.kept, self.block, n_in)

    def layout(self, n_out: int, n_in: int) -> Layout:
        shape = (n_out, self.kept)
        layout: Layout = {
            B_MAP: (shape, np.dtype("<i2")),
            B_VAL: ((*shape, self.block), np.dtype("<f2" if self.vals == "fp16" else "i1")),
        }
        return layout if self.vals == "fp16" else layout | {B_SCALE: (shape, np.dtype("<f2"))}

    def check_data(self, arrays: Arrays, n_in: int) -> None:
        blocks, count = arrays[B_MAP], -(-n_in // self.block)
        if int(blocks.max()) >= count:
            raise ValueError(f"b_map has block {int(blocks.max())} of {count}")
        if not (blocks[:, 1:] > blocks[:, :-1]).all():
            raise ValueError("b_map does not ascend")
        if self.vals == "fp16" and not np.isfinite(arrays[B_VAL]).all():
            raise ValueError("b_val has NaN or infinite values")

    def float_macs(self, n_out: int, n_in: int) -> int:
        return n_out * self.kept * self.block

    def encode(self, delta: F32, row_scale: F32, importance: F32 | None, threads: int) -> dict[str, Array]:
        """The blocks of a row with the largest (weighted) energy Σ importance·Δ²; the first ones win ties."""
        n_out, n_in = delta.shape
        padded = np.zeros((n_out, -(-n_in // self.block) * self.block), np.float32)
        padded[:, :n_in] = delta
        blocks = padded.reshape(n_out, -1, self.block)
        weight = np.zeros(padded.shape[1], np.float32)
        weight[:n_in] = 1 if importance is None else importance
        energy = np.einsum("obi,obi,bi->ob", blocks, blocks, weight.reshape(-1, self.block), dtype=np.float64)
        chosen = np.sort(np.argsort(-energy, axis=1, kind="stable")[:, : self.kept], axis=1)
        values = np.take_along_axis(blocks, chosen[:, :, None], axis=1)
        stored: dict[str, Array] = {B_MAP: chosen.astype("<u2").view("<i2")}
        if self.vals == "fp16":
            return stored | {B_VAL: half(values)}
        steps, scale = int8_steps(values)
        return stored | {B_VAL: steps, B_SCALE: scale}
