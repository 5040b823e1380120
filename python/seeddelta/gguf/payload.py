"""Shapes and types of the arrays that a converted tensor is stored in."""

from __future__ import annotations

from typing import Any

import numpy as np

from .schema import (
    BASE_SEED,
    CODES,
    COLUMN_SCALE,
    FINE_CODES,
    FINE_MAP,
    LANE_BYTES,
    LANES,
    ROW_SCALE,
    LanesBase,
    TensorDescription,
    column_strips,
    lane_code,
)


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
    if isinstance(base, LanesBase):
        code = lane_code(base.code)
        shape = (tiles - base.fine_tiles, code.lines(n_in), LANE_BYTES)
        layout[CODES] = (
            (n_in, sum(column_strips(n_out)), code.column_lines) if description.is_column else shape,
            np.dtype("i1"),
        )
        if base.fine_tiles:
            fine = lane_code(base.fine_code)
            layout[FINE_CODES] = ((base.fine_tiles, fine.lines(n_in), LANE_BYTES), np.dtype("i1"))
            layout[FINE_MAP] = ((-(-tiles // 8),), np.dtype("i1"))
        if base.column_scale:
            layout[COLUMN_SCALE] = ((n_in * (description.experts or 1),), np.dtype("i1"))
    layout |= base.layout(n_out, n_in)
    layout |= residual.layout(n_out, n_in)
    return layout


def payload_bytes(description: TensorDescription) -> int:
    """Bytes of all payload tensors (without alignment)."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in payload_layout(description).values())
