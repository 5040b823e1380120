"""Seeds of a prng_block base chosen for every row or every block of columns (docs/format.md).

For a block it is shape-gain coding: the choice is the shape, an int8 the gain, the row scale the step of the gains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import PrngBlockBase
from .recipe import Recipe

F32 = npt.NDArray[np.float32]
# Gain of a block whose root mean square is the row's largest: twice that is left for values that are small by chance.
_LARGEST_GAIN = 64


def choose_seeds(
    weights: F32, base: PrngBlockBase, recipe: Recipe, importance: F32 | None
) -> tuple[PrngBlockBase, dict[str, np.ndarray[Any, Any]], F32]:
    """The base with its scale, the payload and the row scales that the gains were chosen for (float32[n_out]).

    `recipe.seed_search` seeds are tried for each row or block of float32[n_out, n_in], `importance` is float32[n_in].
    """
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
    payload: dict[str, np.ndarray[Any, Any]] = {schema.SEED_IDX: choice.view("<i2")}
    return base, payload if gain is None else payload | {schema.SEED_GAIN: gain}, row_scale


def _largest_block(weights: F32, block: int, importance: F32 | None) -> F32:
    """Largest (weighted) root mean square of a block of columns in each row."""
    n_in = weights.shape[1]
    weight = np.ones(n_in) if importance is None else importance.astype(np.float64)
    starts = np.arange(0, n_in, block)
    energy = np.add.reduceat(weights.astype(np.float64) ** 2 * weight, starts, axis=1)
    return np.asarray(np.sqrt((energy / np.add.reduceat(weight, starts)).max(axis=1)), np.float32)
