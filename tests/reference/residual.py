"""Products of residuals, and proc_sparse (docs/reference/format.md): float32 in the order that the format fixes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import prng_block_values

LANES = 16  # partial sums of a row

F32 = npt.NDArray[np.float32]


def reduce_lanes(partial: F32) -> F32:
    """Sums of the last axis of float32 [..., 16] in the format's order."""
    half = LANES // 2
    while half:
        partial = partial[..., :half] + partial[..., half : 2 * half]
        half //= 2
    return partial[..., 0]


def dictionary_dot(dictionary: npt.NDArray[np.float16], x: F32) -> F32:
    """p, float32 [n_tokens, M], of a dictionary [M, n_in] and x [n_tokens, n_in]."""
    partial = np.zeros((x.shape[0], dictionary.shape[0], LANES), np.float32)
    for i in range(dictionary.shape[1]):
        partial[:, :, i % LANES] += dictionary[:, i].astype(np.float32) * x[:, i, None]
    return reduce_lanes(partial)


def proc_sparse_blocks(p_map: npt.NDArray[np.integer], kept: int) -> npt.NDArray[np.int64]:
    """Block numbers, ascending, int64 [n_out, kept], of a map [n_out, bytes] with `kept` bits in every row."""
    bits = np.unpackbits(p_map.view(np.uint8), axis=1, bitorder="little")
    return np.asarray(np.nonzero(bits)[1].reshape(len(p_map), kept), np.int64)


def proc_sparse_dot(
    blocks: npt.NDArray[np.integer], value: npt.NDArray[np.int8], q: npt.NDArray[np.int8], scale: F32
) -> F32:
    """Sums of the products in the kept blocks, float32 [n_tokens, n_out], before any scale of the weight.

    blocks [n_out, kept], value int8 [n_out, kept, block]; q int8 [n_tokens, n_in rounded up to 64] and its scales.
    """
    n_out, kept, block = value.shape
    total = np.zeros((len(q), n_out, LANES), np.float32)
    for row in range(n_out):
        for entry in range(kept):
            column = int(blocks[row, entry]) * block
            products = q[:, column : column + block].astype(np.int32) * value[row, entry].astype(np.int32)
            lanes = products.reshape(len(q), block // 32, LANES, 2).sum(axis=(1, 3))
            total[:, row] += lanes.astype(np.float32) * scale[:, column // 64, None]
    return reduce_lanes(total)


def proc_sparse_base(seed: int, blocks: npt.NDArray[np.integer], block: int) -> npt.NDArray[np.int8]:
    """Values of prng_block in the kept blocks, int8 [n_out, kept, block]."""
    n_out, n_in = len(blocks), (int(blocks.max()) + 1) * block
    values = prng_block_values(seed, 0, n_out, n_in, block).reshape(n_out, -1, block)
    return np.asarray(values[np.arange(n_out)[:, None], blocks], np.int8)


def proc_sparse_dense(
    blocks: npt.NDArray[np.integer],
    value: npt.NDArray[np.int8],
    scale: npt.NDArray[np.float16],
    n_in: int,
    base: npt.NDArray[np.int8] | None = None,
    base_scale: float = 0.0,
) -> F32:
    """base_scale · v + Δ inside the kept blocks and 0 outside, float32 [n_out, n_in]."""
    n_out, _, block = value.shape
    inside = value.astype(np.float32) * scale.astype(np.float32)[:, None, None]
    if base is not None:
        inside = base.astype(np.float32) * np.float32(base_scale) + inside
    wide = np.zeros((n_out, -(-n_in // block), block), np.float32)
    np.put_along_axis(wide, blocks[:, :, None].astype(np.int64), inside, axis=1)
    return wide.reshape(n_out, -1)[:, :n_in]
