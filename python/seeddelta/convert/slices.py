"""Large matrices, and those of experts, in parts that are in memory one after the other.

The embedding of a large vocabulary is 2 GB in float32, and encoding takes five times as much beside it. A row's codes
depend on no other row, so that some rows at a time give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..gguf import payload, schema
from ..gguf.schema import LanesBase, NoResidual, TensorDescription
from ..numeric import row_ranges
from .encode import Array, EncodedTensor, join_norms
from .feedback import relative_loss
from .frequent import FineTiles
from .recipe import Recipe

# Weights at a time, 64 MiB in float32. A constant: products of other numbers of rows may be rounded differently.
SLICE = 1 << 24


def can_be_sliced(description: TensorDescription, recipe: Recipe) -> bool:
    """True when rows are encoded without regard to the others."""
    alone = isinstance(description.base, LanesBase) and isinstance(description.residual, NoResidual)
    return alone and not description.is_column and recipe.gradient is None and recipe.seed_search <= 1


def slices_of(description: TensorDescription) -> list[tuple[int, int]]:
    """Ranges of rows that are encoded at a time: the experts, or about SLICE weights in whole tiles."""
    n_out, n_in = description.shape
    if description.experts is not None:
        return [(n_out * expert, n_out * (expert + 1)) for expert in range(description.experts)]
    tiles = row_ranges(-(-n_out // schema.LANES), n_in, SLICE // schema.LANES)
    return [(schema.LANES * begin, min(schema.LANES * end, n_out)) for begin, end in tiles]


def join_fine(coarse: EncodedTensor, fine: EncodedTensor, tiles: FineTiles) -> EncodedTensor:
    """One matrix from its rows of two rates; those of `tiles` are the fine ones."""
    base, other = coarse.description.base, fine.description.base
    assert isinstance(base, LanesBase)
    assert isinstance(other, LanesBase)
    both = _together([coarse, fine])
    base = base.model_copy(update={"fine_code": other.code, "fine_tiles": tiles.count})
    description = both.description.model_copy(update={"base": base})
    rows = tiles.rows(description.shape[0])
    row_scale = np.empty(len(rows), coarse.arrays[schema.ROW_SCALE].dtype)
    row_scale[~rows] = coarse.arrays[schema.ROW_SCALE]
    row_scale[rows] = fine.arrays[schema.ROW_SCALE]
    arrays = coarse.arrays | {
        schema.ROW_SCALE: row_scale,
        schema.FINE_CODES: fine.arrays[schema.CODES],
        schema.FINE_MAP: np.frombuffer(tiles.tiles, "i1"),
    }
    ordered = {suffix: arrays[suffix] for suffix in payload.payload_layout(description)}
    return replace(both, description=description, arrays=ordered)


def join_rows(encoded: Sequence[EncodedTensor]) -> EncodedTensor:
    """One matrix from its rows, some after the others, which were encoded by the same recipe."""
    if len(encoded) == 1:
        return encoded[0]
    assert all(one.description.base == encoded[0].description.base for one in encoded)
    of_columns = (schema.BASE_SEED, schema.COLUMN_SCALE)
    arrays: dict[str, Array] = {
        suffix: array if suffix in of_columns else np.concatenate([one.arrays[suffix] for one in encoded])
        for suffix, array in encoded[0].arrays.items()
    }
    return replace(_together(encoded), arrays=arrays)


def _together(encoded: Sequence[EncodedTensor]) -> EncodedTensor:
    """Shape and errors of all rows, and the rest of the first ones."""
    first = encoded[0].description
    outputs = None
    if encoded[0].outputs is not None:
        lost, whole = (sum(one.outputs[at] for one in encoded if one.outputs is not None) for at in (0, 1))
        outputs = lost, whole
    norms, metrics = join_norms(encoded, None if outputs is None else relative_loss(*outputs))
    rows = sum(one.description.shape[0] for one in encoded)
    description = first.model_copy(update={"shape": (rows, first.shape[1]), "norms": norms})
    return replace(encoded[0], description=description, metrics=metrics, outputs=outputs)
