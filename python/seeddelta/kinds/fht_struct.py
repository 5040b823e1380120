"""Base kind fht_struct: W0 = H G Π H B, seeded signs, a permutation and a diagonal between Hadamard transforms.

Fastfood (Le, Sarlós, Smola 2013); its last diagonal is the row scale here (docs/reference/format.md).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..reference.base import GOLDEN, MASK, splitmix64_at, splitmix64_mix
from .fitting import FittedBase
from .kind import F32

# Their sum over uniform indices is nearly Gaussian, with the standard deviation 19.862.
GAUSS_1 = np.array([-36, -23, -17, -12, -8, -5, -3, -1, 1, 3, 5, 8, 12, 17, 23, 36], np.int8)
GAUSS_2 = np.array([-19, -14, -11, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 11, 14, 19], np.int8)
MAX_COLUMNS = 1 << 18  # beyond, the integers are not exact in float32


class FhtStructBase(FittedBase):
    """Base of two Hadamard transforms, a permutation and seeded diagonals: a product takes O(d log d)."""

    number = 1
    kind: Literal["fht_struct"]

    @classmethod
    def describe(cls, recipe: Any) -> FhtStructBase:
        return cls(kind="fht_struct", scale=recipe.base_scale or 0.0)

    def check(self, n_out: int, n_in: int) -> None:
        if n_in > MAX_COLUMNS:
            raise ValueError(f"fht_struct has at most {MAX_COLUMNS} columns, not {n_in}")

    def transform_ops(self, n_out: int, n_in: int) -> int:
        """Of two transforms, signs and G for each block of rows."""
        d = block_rows(n_in)
        return -(-n_out // d) * 2 * d * d.bit_length()

    def values(self, seed: int, begin: int, end: int, n_in: int, columns: int) -> F32:
        from .. import _core

        return _core.base_values(self.number, seed, begin, end, n_in)[:, :columns]


def block_rows(n_in: int) -> int:
    """Rows d of a block of W0."""
    return max(64, 1 << (n_in - 1).bit_length())


def fht_struct_values(seed: int, row_begin: int, row_end: int, n_in: int) -> F32:
    """Values of the base, whole numbers in float32 [row_end - row_begin, n_in], by matrices."""
    d = block_rows(n_in)
    hadamard = np.array([[1.0]])
    while len(hadamard) < d:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rows = []
    for block in range(row_begin // d, -(-row_end // d)):
        negative, order, gauss = _parts(seed, block, d)
        signs = np.where(negative, -1.0, 1.0)
        rows.append(((hadamard * gauss) @ hadamard[order] * signs)[:, :n_in])
    first = row_begin // d * d
    return np.concatenate(rows)[row_begin - first : row_end - first].astype(np.float32)


def fht_struct_product(seed: int, n_out: int, x: F32) -> F32:
    """The base's share W0·x, float32 [n_tokens, n_out], of x [n_tokens, n_in], in the format's order of additions."""
    n_tokens, n_in = x.shape
    d = block_rows(n_in)
    out = []
    for block in range(-(-n_out // d)):
        negative, order, gauss = _parts(seed, block, d)
        padded = np.zeros((n_tokens, d), np.float32)
        padded[:, :n_in] = x
        mixed = _butterflies(np.where(negative, -padded, padded).astype(np.float32))
        out.append(_butterflies(gauss.astype(np.float32) * mixed[:, order]))
    return np.concatenate(out, axis=1)[:, :n_out]


def _parts(seed: int, block: int, d: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """Where B is negative, the permutation and the diagonal G, each [d], of a block of d rows."""
    key = splitmix64_mix((seed + GOLDEN * (block + 1)) & MASK)
    negative = np.array([(splitmix64_at(key, i // 64) >> (i % 64)) & 1 for i in range(d)], bool)
    word = splitmix64_at(key, d // 64)
    first, second = (word & 0xFFFFFFFF) | 1, (word >> 32) | 1
    shift = ((d - 1).bit_length() + 1) // 2
    order = []
    for i in range(d):
        p = (i * first + second) % d
        p ^= p >> shift
        p = p * second % d
        order.append(p ^ (p >> shift))
    byte = np.array([(splitmix64_at(key, d // 64 + 1 + i // 8) >> (8 * (i % 8))) & 255 for i in range(d)])
    gauss = GAUSS_1[byte >> 4] + GAUSS_2[byte & 15]
    return negative, np.array(order), np.asarray(gauss, np.int8)


def _butterflies(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Hadamard transform of every row, not normalised, with strides 1, 2, 4, …"""
    n, d = rows.shape
    stride = 1
    while stride < d:
        pairs = rows.reshape(n, -1, 2, stride)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([a + b, a - b], axis=2).reshape(n, d)
        stride *= 2
    return rows
