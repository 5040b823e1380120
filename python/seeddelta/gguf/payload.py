"""Shapes and types of the arrays that a converted tensor is stored in."""

from __future__ import annotations

from typing import Any

import numpy as np

from .schema import (
    BASE_SEED,
    CODES,
    COLUMN_SCALE,
    COLUMN_SLICE,
    LANE_BYTES,
    LANES,
    ROW_SCALE,
    LanesBase,
    TensorDescription,
    TrellisBase,
    column_strips,
    lane_codes,
)


def trellis_words(n_in: int, step_bits: int, values_per_step: int) -> int:
    """16-bit words of one row's bit stream."""
    steps = -(-n_in // (16 * values_per_step)) * 16
    return -(-(16 + step_bits * (steps - 1)) // 16)


def column_words(n_out: int, step_bits: int, values_per_step: int) -> int:
    """16-bit words of one lane's closed bit stream in column layout."""
    least = 16 * values_per_step * -(-16 // step_bits)  # a state is 16 bits of the stream
    positions = -(-max(n_out, least) // COLUMN_SLICE) * COLUMN_SLICE
    return -(-step_bits * positions // (16 * values_per_step) // 16)


def payload_layout(description: TensorDescription) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Suffix -> (NumPy shape, stored dtype) of every payload tensor, in file order."""
    n_in, n_out = description.shape[1], description.rows
    tiles = -(-description.shape[0] // LANES) * (description.experts or 1)
    row = np.dtype("<f2" if description.row_scale == "f16" else "<f4")
    layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        BASE_SEED: ((1,), np.dtype("<i8")),
        ROW_SCALE: ((n_in if description.is_column else n_out,), row),
    }
    base, residual = description.base, description.residual
    if isinstance(base, TrellisBase):
        if description.is_column:
            words = column_words(n_out, base.step_bits, base.values_per_step)
            layout[CODES] = ((n_in, words, LANES), np.dtype("<i2"))
        else:
            words = trellis_words(n_in, base.step_bits, base.values_per_step)
            layout[CODES] = ((tiles, words, LANES), np.dtype("<i2"))
        if base.column_scale:
            layout[COLUMN_SCALE] = ((n_in * (description.experts or 1),), np.dtype("i1"))
    if isinstance(base, LanesBase):
        code = lane_codes()[base.code]
        shape = (tiles, code.lines(n_in), LANE_BYTES)
        layout[CODES] = (
            (n_in, sum(column_strips(n_out)), code.column_lines) if description.is_column else shape,
            np.dtype("i1"),
        )
        if base.column_scale:
            layout[COLUMN_SCALE] = ((n_in * (description.experts or 1),), np.dtype("i1"))
    layout |= base.layout(n_out, n_in)
    layout |= residual.layout(n_out, n_in)
    return layout


def payload_bytes(description: TensorDescription) -> int:
    """Bytes of all payload tensors (without alignment)."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in payload_layout(description).values())
