"""NumPy definitions of the kinds that measurements advise against, in the order of additions of the format."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from reference.base import GOLDEN, MASK, splitmix64_at, splitmix64_mix
from reference.residual import LANES, reduce_lanes
from seeddelta.kinds.fht_struct import block_rows

# Their sum over uniform indices is nearly Gaussian, with the standard deviation 19.862.
GAUSS_1 = np.array([-36, -23, -17, -12, -8, -5, -3, -1, 1, 3, 5, 8, 12, 17, 23, 36], np.int8)
GAUSS_2 = np.array([-19, -14, -11, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 11, 14, 19], np.int8)
F32 = npt.NDArray[np.float32]


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
    """Hadamard transform of every row, not normalized, with strides 1, 2, 4, …"""
    n, d = rows.shape
    stride = 1
    while stride < d:
        pairs = rows.reshape(n, -1, 2, stride)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([a + b, a - b], axis=2).reshape(n, d)
        stride *= 2
    return rows
