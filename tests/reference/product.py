"""What is computed (docs/reference/format.md): float32, in the format's order, so that results are the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import column_factor, rotate, rotate_back

GROUP = 64
LANE_GROUP = 128  # of base kind lanes in row layout
COO_LANES = 16


def quantize_activations(
    x: npt.NDArray[np.float32], group: int = GROUP
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """int8 [n_tokens, n_in rounded up to `group`], float32 scales [n_tokens, groups] of float32 x [n_tokens, n_in]."""
    n_tokens, n_in = x.shape
    padded = np.zeros((n_tokens, -(-n_in // group) * group), np.float32)
    padded[:, :n_in] = x
    groups = padded.reshape(n_tokens, -1, group)
    largest = np.maximum(np.abs(groups).max(axis=2), np.float32(127 / 512) * largest_four(groups))
    used = largest >= np.float32(2.0**-100)
    scale = np.where(used, largest / np.float32(127), np.float32(0)).astype(np.float32)
    inverse = np.where(used, np.float32(127) / np.where(used, largest, np.float32(1)), np.float32(0))
    q = np.rint(groups * inverse.astype(np.float32)[:, :, None]).astype(np.int8)
    return q.reshape(n_tokens, -1), scale


def largest_four(groups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [n_tokens, groups]: the largest |a| + |b| + |c| + |d| + |a + b + c + d| of the fours of a group.

    A four is columns 0, 1, 4 and 5, or 2, 3, 6 and 7, of eight neighbors: its products with int8 fit 16 bits.
    """
    halves = groups.reshape(*groups.shape[:2], -1, 2, 2, 2)  # eight, 0 to 3 or 4 to 7, four, one of two

    def added(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        pairs = x[..., 0, :, :] + x[..., 1, :, :]
        return np.asarray(pairs[..., 0] + pairs[..., 1])

    return np.asarray((added(np.abs(halves)) + np.abs(added(halves))).max(axis=(2, 3)))


def coo_dot(
    index: npt.NDArray[np.integer], value: npt.NDArray[np.float32], x: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Residual's share, float32 [n_tokens, n_out], of index and value [n_out, K] and x [n_tokens, n_in]."""
    n_out, k = index.shape
    partial = np.zeros((x.shape[0], n_out, COO_LANES), np.float32)
    for entry in range(k):
        partial[:, :, entry % COO_LANES] += value[:, entry] * x[:, index[:, entry]]
    half = COO_LANES // 2
    while half:
        partial[:, :, :half] += partial[:, :, half : 2 * half]
        half //= 2
    return partial[:, :, 0]


def matmul(
    values: npt.NDArray[np.integer],
    base_scale: float,
    row_scale: npt.NDArray[np.floating],
    x: npt.NDArray[np.float32],
    *,
    rotation_block: int = 0,
    seed: int = 0,
    column_scale: npt.NDArray[np.int8] | None = None,
    coo: tuple[npt.NDArray[np.integer], npt.NDArray[np.float32]] | None = None,
    base_share: npt.NDArray[np.float32] | None = None,
    residual_share: npt.NDArray[np.float32] | None = None,
    group: int = GROUP,
) -> npt.NDArray[np.float32]:
    """y = x Ŵᵀ, float32 [n_tokens, n_out], from base values [n_out, n_in] (rotated domain) and a coo residual.

    `group`: columns whose activations have one scale, LANE_GROUP for base lanes.
    `base_share` and `residual_share` (coo_dot of dictionary_dot, or what kinds/ defines), both float32
    [n_tokens, n_out], stand for a base and a residual of other kinds.
    """
    scaled = x if column_scale is None else x * column_factor(column_scale)
    q, scale = quantize_activations(rotate(scaled, rotation_block, seed) if rotation_block > 1 else scaled, group)
    padded = np.zeros((values.shape[0], q.shape[1]), np.int32)
    padded[:, : values.shape[1]] = values
    acc = np.zeros((x.shape[0], values.shape[0]), np.float32)
    for g in range(scale.shape[1]):
        columns = slice(g * group, (g + 1) * group)
        dots = q[:, columns].astype(np.int32) @ padded[:, columns].T
        acc = acc + dots.astype(np.float32) * scale[:, g, None]
    if base_share is not None:
        acc = base_share
    residual = coo_dot(*coo, x) if coo is not None else np.zeros_like(acc)
    if residual_share is not None:
        residual = residual_share
    return np.asarray(row_scale.astype(np.float32) * (acc * np.float32(base_scale) + residual), np.float32)


def column_matmul(
    values: npt.NDArray[np.integer],
    input_scale: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    *,
    rotation_block: int = 0,
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """y = x Ŵᵀ, float32 [n_tokens, n_out], in column layout, from values [n_in, n_out] and x [n_tokens, n_in].

    An input that is 0 is a unit that is not active.
    """
    n_in, n_out = values.shape
    q, scale = quantize_activations(np.asarray(x * input_scale, np.float32))
    acc = np.zeros((x.shape[0], n_out), np.float32)
    for group in range(scale.shape[1]):
        units = slice(group * GROUP, min((group + 1) * GROUP, n_in))
        dots = q[:, units].astype(np.int32) @ values[units].astype(np.int32)
        acc = acc + dots.astype(np.float32) * scale[:, group, None]
    return rotate_back(acc, rotation_block, seed) if rotation_block > 1 else acc


def dequantize(
    values: npt.NDArray[np.integer],
    base_scale: float,
    row_scale: npt.NDArray[np.floating],
    *,
    rotation_block: int = 0,
    seed: int = 0,
    column_scale: npt.NDArray[np.int8] | None = None,
    coo: tuple[npt.NDArray[np.integer], npt.NDArray[np.float32]] | None = None,
) -> npt.NDArray[np.float32]:
    """The dense matrix Ŵ, float32 [n_out, n_in]. The rotation is orthonormal: its inverse is its transpose."""
    w = values.astype(np.float32) * np.float32(base_scale)
    if rotation_block > 1:
        identity = np.eye(values.shape[1], dtype=np.float32)
        w = w @ rotate(identity, rotation_block, seed).T
    if column_scale is not None:
        w = w * column_factor(column_scale)
    if coo is not None:
        index, value = coo
        np.add.at(w, (np.arange(w.shape[0])[:, None], index), value)
    return np.asarray(w * row_scale.astype(np.float32)[:, None], np.float32)
