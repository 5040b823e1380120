"""Base kind lanes (docs/reference/format.md, "The byte lanes")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

TILE_ROWS, STREAMS, PREFIX, PLANE_VALUES = 16, 4, 32, 8


def _streams(steps: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """[n_tiles · 16 rows, 4 streams, steps] from [n_tiles, …, 64] with the steps in order."""
    tiles = steps.shape[0]
    streams = steps.reshape(tiles, -1, TILE_ROWS, STREAMS).transpose(0, 2, 3, 1)
    return np.asarray(streams.reshape(tiles * TILE_ROWS, STREAMS, -1), np.uint8)


def lane_steps(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes, uint8 [n_tiles · 16 rows, 4 streams, steps], of base lanes from uint8 [n_tiles, lines, 64]."""
    lines = codes.view(np.uint8)
    return _streams(np.stack([lines & 15, lines >> 4], axis=2))


def lanes_values(
    codes: npt.NDArray[np.uint8],
    n_out: int,
    n_in: int,
    emits: Sequence[int],
    tables: npt.NDArray[np.int8],
    added: Sequence[int] = (),
    values_with_bits: int = 0,
) -> npt.NDArray[np.int8]:
    """Values of base kind lanes, int8 [n_out, n_in], from codes uint8 [n_tiles, lines, 64].

    `emits` is how many values each step of the pattern has, `tables` int8 [values of the pattern, 2, 16], `added` what
    the bit of each plane adds to one of the first `values_with_bits` values of the pattern.
    """
    planes = []
    if added:  # a chunk of lines: one for each plane, then those of the codes of the values with its bits
        in_chunk = len(added) + PLANE_VALUES // values_with_bits * len(emits) // 2
        chunks = codes.view(np.uint8).reshape(codes.shape[0], -1, in_chunk, codes.shape[2])
        codes = chunks[:, :, len(added) :].reshape(codes.shape[0], -1, codes.shape[2])
        bits = np.arange(PLANE_VALUES, dtype=np.uint8)[:, None]
        planes = [_streams(chunks[:, :, p, None] >> bits & 1)[:n_out] for p in range(len(added))]
    c0 = lane_steps(codes)[:n_out]
    values = _values(c0, min(PREFIX, c0.shape[2]), emits, tables, planes, added, values_with_bits)
    out = np.stack(values, axis=1)  # value j of stream i is column 4j + i
    return np.asarray(out.reshape(n_out, -1)[:, :n_in], np.int8)


def _values(
    c0: npt.NDArray[np.uint8],
    prefix: int,
    emits: Sequence[int],
    tables: npt.NDArray[np.int8],
    planes: Sequence[npt.NDArray[Any]],
    added: Sequence[int],
    values_with_bits: int,
) -> list[npt.NDArray[np.int8]]:
    """Values, each [n, streams], of streams whose codes are c0 [n, streams, steps].

    The codes before the first are the last two of the first `prefix` ones (tail-biting).
    """
    before = np.concatenate([c0[:, :, prefix - 2 : prefix], c0], axis=2)  # the stream's codes of two steps, then all
    c1, c2 = before[:, :, 1:-1], before[:, :, :-2]
    values = []
    for step in range(c0.shape[2]):
        at = step % len(emits)
        first = sum(emits[:at])
        for i, (a, b) in enumerate(tables[first : first + emits[at]]):
            if i % 2 == 0:
                values.append(a[(c0[:, :, step] + c2[:, :, step]) & 15] + b[c1[:, :, step]])
            else:
                values.append(a[(c0[:, :, step] + c1[:, :, step] + c2[:, :, step]) & 15] + b[c0[:, :, step]])
    with_bits = [j for j in range(len(values)) if j % sum(emits) < values_with_bits]
    for plane, amount in zip(planes, added, strict=True):
        for bit, j in enumerate(with_bits):
            values[j] = values[j] + plane[:, :, bit].astype(np.int8) * np.int8(amount)
    return values


def column_lanes_values(
    codes: npt.NDArray[np.uint8],
    n_out: int,
    emits: Sequence[int],
    tables: npt.NDArray[np.int8],
    added: Sequence[int] = (),
    values_with_bits: int = 0,
) -> npt.NDArray[np.int8]:
    """Values of base kind lanes in column layout, int8 [n_in, n_out], from codes uint8 [n_in, streams, lines]."""
    n_in, _, n_lines = codes.shape
    flat, begin, out = codes.view(np.uint8).reshape(-1), 0, []
    wide, rest = divmod(n_out, 256)
    before = wide if n_out % 64 else (wide + 1) // 2
    for streams in [16] * before + [4] * -(-rest // 64) + [16] * (wide - before):  # strips of 256 and of 64 outputs
        strip = flat[begin : begin + n_in * streams * n_lines].reshape(n_in, -1)
        begin += strip.size
        lines = _column_lines(strip, streams, n_lines)
        planes = []
        if added:
            chunks = lines.reshape(n_in, streams, -1, len(added) + PLANE_VALUES // values_with_bits * len(emits) // 2)
            bits = np.arange(PLANE_VALUES, dtype=np.uint8)
            planes = [(chunks[..., p, None] >> bits & 1).reshape(n_in, streams, -1) for p in range(len(added))]
            lines = chunks[..., len(added) :].reshape(n_in, streams, -1)
        c0 = np.stack([lines & 15, lines >> 4], axis=3).reshape(n_in, streams, -1)
        values = _values(c0, c0.shape[2], emits, tables, planes, added, values_with_bits)
        out.append(np.stack(values, axis=1).reshape(n_in, -1))  # value v of stream w is output v · streams + w
    return np.asarray(np.concatenate(out, axis=1)[:, :n_out], np.int8)


def _column_lines(strip: npt.NDArray[np.uint8], streams: int, n_lines: int) -> npt.NDArray[np.uint8]:
    """[n_in, streams, lines] of a strip's bytes [n_in, streams · lines]: four lines of four streams are neighbors."""
    parts = []
    for line in range(0, n_lines, 4):
        count = min(4, n_lines - line)
        block = strip[:, line * streams : (line + count) * streams].reshape(len(strip), streams // 4, count, 4)
        parts.append(block.transpose(0, 1, 3, 2).reshape(len(strip), streams, count))
    return np.concatenate(parts, axis=2)
