"""Base kinds and the input rotation (docs/reference/format.md, "The weight")."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def splitmix64_mix(z: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def splitmix64_at(key: int, n: int) -> int:
    """The n-th output, from 0, of SplitMix64 started at `key`."""
    return splitmix64_mix((key + (n + 1) * GOLDEN) & MASK)


def prng_block_values(
    seed: int,
    row_begin: int,
    row_end: int,
    n_in: int,
    block: int = 64,
    seed_idx: npt.NDArray[np.uint16] | None = None,
    seed_gain: npt.NDArray[np.int8] | None = None,
) -> npt.NDArray[np.int16]:
    """Values of base kind prng_block, int16 [row_end - row_begin, n_in].

    `seed_idx` is uint16 [n_out] (choices of rows), or with `seed_gain`, int8, [n_out, blocks] (choices of blocks).
    """
    out = np.empty((row_end - row_begin, n_in), np.int16)
    for row in range(row_begin, row_end):
        for column in range(n_in):
            at, offset = divmod(column, block)
            choice = 0 if seed_idx is None else int(seed_idx[row] if seed_gain is None else seed_idx[row, at])
            row_key = splitmix64_mix((seed + GOLDEN * choice + GOLDEN * (row + 1)) & MASK)
            key = splitmix64_mix((row_key + GOLDEN * (at + 1)) & MASK)
            value = 2 * ((splitmix64_at(key, offset // 8) >> (8 * (offset % 8))) & 63) - 63
            out[row - row_begin, column] = value * (1 if seed_gain is None else int(seed_gain[row, at]))
    return out


def rotate(rows: npt.NDArray[np.float32], block: int, seed: int) -> npt.NDArray[np.float32]:
    """Seeded signs, then the normalized Hadamard transform of columns b, b + n_in/block, …; float32 [n, n_in]."""
    negative = _negative(rows.shape[1], seed)
    return _hadamard(np.where(negative, -rows, rows).astype(np.float32), block)


def rotate_back(rows: npt.NDArray[np.float32], block: int, seed: int) -> npt.NDArray[np.float32]:
    """The inverse of `rotate`: Hadamard, then signs."""
    rows = _hadamard(rows, block)
    return np.where(_negative(rows.shape[1], seed), -rows, rows).astype(np.float32)


def _negative(n: int, seed: int) -> npt.NDArray[np.bool_]:
    words = [splitmix64_at(splitmix64_mix(seed), i) for i in range((n + 63) // 64)]
    return np.array([(words[i // 64] >> (i % 64)) & 1 for i in range(n)], bool)


def _hadamard(x: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.float32]:
    n, n_in = x.shape
    stride = n_in // block
    while stride < n_in:
        pairs = x.reshape(n, -1, 2, stride)
        a, b = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        x = np.stack([a + b, a - b], axis=2).reshape(n, n_in)
        stride *= 2
    return np.asarray(x * np.float32(1.0 / np.sqrt(np.float32(block))), np.float32)


def column_factor(column_scale: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
    """2^(scale / 8) in float32 of int8 scales, any shape."""
    eighths = np.float32(2.0 ** (np.arange(8) / 8))
    wide = column_scale.astype(np.int32)
    return np.asarray(np.ldexp(eighths[wide & 7], wide >> 3), np.float32)
