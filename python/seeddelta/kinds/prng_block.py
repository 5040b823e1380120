"""Base kind prng_block: uniform odd integers from SplitMix64, and seeds chosen for every row or every block of columns.

For a block it is shape-gain coding: the choice is the shape, an int8 the gain, the row scale the step of the gains
(docs/reference/format.md).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from .fitting import FittedBase
from .kind import F32, Array, BaseKind, Layout

SEED_IDX, SEED_GAIN = "seed_idx", "seed_gain"
MAX_SEED_CHOICES = 65536
# Gain of a block whose root mean square is the row's largest: twice that is left for values that are small by chance.
_LARGEST_GAIN = 64


class PrngBlockBase(FittedBase):
    """Base of uniform odd integers from SplitMix64, one stream a row and block of columns.

    `seed_per` says for what a seed was chosen: row and block have their choices (and block its gains) as payload.
    """

    number = 0
    suffixes = (SEED_IDX, SEED_GAIN)
    unsigned = (SEED_IDX,)
    kind: Literal["prng_block"]
    block: Literal[8, 16, 32, 64]
    seed_per: Literal["tensor", "row", "block"] = "tensor"
    rotation_block: int = Field(default=0, ge=0)

    @classmethod
    def check_recipe(cls, recipe: Any) -> None:
        if recipe.seed_per != "tensor":
            if recipe.base_kind != "prng_block" or recipe.base_scale is not None:
                raise ValueError(f"--seed-per {recipe.seed_per} is for --base-kind prng_block without --base-scale")
            if not 2 <= recipe.seed_search <= MAX_SEED_CHOICES:
                raise ValueError(f"--seed-per {recipe.seed_per} needs --seed-search 2 to {MAX_SEED_CHOICES}")
        if recipe.block < 32 and (recipe.base_kind != "prng_block" or recipe.residual_scheme == "block"):
            raise ValueError("--block 8 and 16 are for --base-kind prng_block, and not with --scheme block")

    @classmethod
    def describe(cls, recipe: Any) -> PrngBlockBase:
        scale = recipe.base_scale or 0.0
        return cls(kind="prng_block", scale=scale, block=recipe.block, seed_per=recipe.seed_per)

    @classmethod
    def row_bits(cls, recipe: Any, n_in: int) -> int:
        return {"tensor": 0, "row": 16, "block": 24 * -(-n_in // int(recipe.block))}[str(recipe.seed_per)]

    def layout(self, n_out: int, n_in: int) -> Layout:
        if self.seed_per == "tensor":
            return {}
        if self.seed_per == "row":
            return {SEED_IDX: ((n_out,), np.dtype("<i2"))}
        shape = (n_out, -(-n_in // self.block))
        return {SEED_IDX: (shape, np.dtype("<i2")), SEED_GAIN: (shape, np.dtype("i1"))}

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"base_block": self.block}

    def decode_ops(self) -> int:
        """1/8 of a SplitMix64 output of about 8 operations, mask and shift, and the gain."""
        return 4 if self.seed_per == "block" else 3

    def scales_rows(self) -> bool:
        """Chosen seeds need scales beforehand."""
        return self.seed_per == "tensor"

    def values(self, seed: int, begin: int, end: int, n_in: int, columns: int) -> F32:
        from .. import _core

        return _core.prng_block_values(seed, begin, end, columns, self.block).astype(np.float32)

    def encode(self, weights: F32, recipe: Any, importance: F32 | None) -> tuple[BaseKind, int, dict[str, Array], F32]:
        if self.seed_per == "tensor":
            return super().encode(weights, recipe, importance)
        base, chosen, row_scale = choose_seeds(weights, self, recipe, importance)
        return base, recipe.seed, chosen, row_scale


def choose_seeds(
    weights: F32, base: PrngBlockBase, recipe: Any, importance: F32 | None
) -> tuple[PrngBlockBase, dict[str, Array], F32]:
    """The base with its scale, the payload and the row scales that the gains were chosen for (float32[n_out]).

    `recipe.seed_search` seeds are tried for each row or block of float32[n_out, n_in], `importance` is float32[n_in].
    """
    from .. import _core

    blocks = base.seed_per == "block"
    scale = 1 / (_core.PRNG_BLOCK_STD * (_LARGEST_GAIN if blocks else 1))
    base = base.model_copy(update={"scale": scale})
    row_scale = _largest_block(weights, base.block, importance)
    if recipe.row_scale == "f16":
        row_scale = row_scale.astype(np.float16).astype(np.float32)
    choice, gain, _ = _core.seed_search(
        weights,
        seed=recipe.seed,
        block=base.block,
        choices=recipe.seed_search,
        importance=importance,
        step=row_scale * np.float32(scale) if blocks else None,
        threads=recipe.threads,
    )
    payload: dict[str, Array] = {SEED_IDX: choice.view("<i2")}
    return base, payload if gain is None else payload | {SEED_GAIN: gain}, row_scale


def _largest_block(weights: F32, block: int, importance: F32 | None) -> F32:
    """Largest (weighted) root mean square of a block of columns in each row."""
    n_in = weights.shape[1]
    weight = np.ones(n_in) if importance is None else importance.astype(np.float64)
    starts = np.arange(0, n_in, block)
    energy = np.add.reduceat(weights.astype(np.float64) ** 2 * weight, starts, axis=1)
    return np.asarray(np.sqrt((energy / np.add.reduceat(weight, starts)).max(axis=1)), np.float32)
