"""Base kind lanes (docs/reference/format.md, "The byte lanes")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TILE_ROWS, WALKS, LOOP = 16, 4, 32


def lane_steps(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes, uint8 [n_tiles · 16 rows, 4 walks, steps], of base lanes from uint8 [n_tiles, lines, 64]."""
    tiles, lines, _ = codes.shape
    both = np.stack([codes.view(np.uint8) & 15, codes.view(np.uint8) >> 4], axis=2)  # [tile, line, low or high, byte]
    walks = both.reshape(tiles, 2 * lines, TILE_ROWS, WALKS).transpose(0, 2, 3, 1)
    return np.asarray(walks.reshape(tiles * TILE_ROWS, WALKS, 2 * lines), np.uint8)


def lanes_values(
    codes: npt.NDArray[np.uint8], n_out: int, n_in: int, emits: Sequence[int], tables: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """Values of base kind lanes, int8 [n_out, n_in], from codes uint8 [n_tiles, lines, 64].

    `emits` is how many values each step of the pattern has, `tables` int8 [values of the pattern, 2, 16].
    """
    c0 = lane_steps(codes)[:n_out]
    steps = c0.shape[2]
    loop = min(LOOP, steps)
    before = np.concatenate([c0[:, :, loop - 2 : loop], c0], axis=2)  # the walk's codes of two steps, then all
    c1, c2 = before[:, :, 1:-1], before[:, :, :-2]
    values = []
    for step in range(steps):
        at = step % len(emits)
        first = sum(emits[:at])
        a, b = tables[first]
        values.append(a[(c0[:, :, step] + c2[:, :, step]) & 15] + b[c1[:, :, step]])
        if emits[at] == 2:
            a, b = tables[first + 1]
            values.append(a[(c0[:, :, step] + c1[:, :, step] + c2[:, :, step]) & 15] + b[c0[:, :, step]])
    out = np.stack(values, axis=1)  # value j of walk i is column 4j + i
    return np.asarray(out.reshape(n_out, -1)[:, :n_in], np.int8)
