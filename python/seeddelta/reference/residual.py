"""Residual schemes block and codebook_resid (docs/format.md): float32 in the order that the format fixes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LANES = 16  # partial sums of a row

F32 = npt.NDArray[np.float32]


def reduce_lanes(partial: F32) -> F32:
    """Sums of the last axis of float32 [..., 16] in the format's order."""
    half = LANES // 2
    while half:
        partial = partial[..., :half] + partial[..., half : 2 * half]
        half //= 2
    return partial[..., 0]


def block_dot(
    blocks: npt.NDArray[np.integer], value: npt.NDArray[np.generic], scale: npt.NDArray[np.float16] | None, x: F32
) -> F32:
    """Residual's share, float32 [n_tokens, n_out], of blocks [n_out, kept], value int8 or float16 [n_out, kept, block],
    scale [n_out, kept] (None with float16) and x [n_tokens, n_in]."""
    n_out, kept, block = value.shape
    n_in = x.shape[1]
    total = np.zeros((x.shape[0], n_out, LANES), np.float32)
    for row in range(n_out):
        for entry in range(kept):
            column = int(blocks[row, entry]) * block
            partial = np.zeros((x.shape[0], LANES), np.float32)
            for i in range(min(block, n_in - column)):
                partial[:, i % LANES] += np.float32(value[row, entry, i]) * x[:, column + i]
            total[:, row] += partial * np.float32(1 if scale is None else scale[row, entry])
    return reduce_lanes(total)


def dictionary_dot(dictionary: npt.NDArray[np.float16], x: F32) -> F32:
    """p, float32 [n_tokens, M], of a dictionary [M, n_in] and x [n_tokens, n_in]."""
    partial = np.zeros((x.shape[0], dictionary.shape[0], LANES), np.float32)
    for i in range(dictionary.shape[1]):
        partial[:, :, i % LANES] += dictionary[:, i].astype(np.float32) * x[:, i, None]
    return reduce_lanes(partial)


def block_dense(
    blocks: npt.NDArray[np.integer], value: npt.NDArray[np.generic], scale: npt.NDArray[np.float16] | None, n_in: int
) -> F32:
    """Δ of scheme block, float32 [n_out, n_in]."""
    n_out, kept, block = value.shape
    wide = np.zeros((n_out, -(-n_in // block), block), np.float32)
    scales = np.ones((n_out, kept), np.float32) if scale is None else scale.astype(np.float32)
    np.add.at(wide, (np.arange(n_out)[:, None], blocks), value.astype(np.float32) * scales[:, :, None])
    return wide.reshape(n_out, -1)[:, :n_in]


def codebook_dense(
    dictionary: npt.NDArray[np.float16], codes: npt.NDArray[np.integer], value: npt.NDArray[np.float16]
) -> F32:
    """Δ of scheme codebook_resid, float32 [n_out, n_in]."""
    amplitude = np.zeros((codes.shape[0], dictionary.shape[0]), np.float32)
    np.add.at(amplitude, (np.arange(codes.shape[0])[:, None], codes), value.astype(np.float32))
    return np.asarray(amplitude @ dictionary.astype(np.float32), np.float32)
