"""Shapes and types of the arrays that a converted tensor is stored in."""

from __future__ import annotations

from typing import Any

import numpy as np

from .schema import (
    B_MAP,
    B_SCALE,
    B_VAL,
    BASE_SEED,
    CODES,
    COLUMN_SCALE,
    COLUMN_SLICE,
    D_IDX,
    D_SCALE,
    D_VAL,
    LANE_BYTES,
    LANES,
    MAX_U16_COLUMNS,
    P_MAP,
    P_SCALE,
    P_VAL,
    R_CODES,
    R_DICT,
    R_VALS,
    ROW_SCALE,
    SEED_GAIN,
    SEED_IDX,
    BlockResidual,
    CodebookResidual,
    CooResidual,
    LanesBase,
    PrngBlockBase,
    ProcSparseResidual,
    TensorDescription,
    TrellisBase,
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
        layout[CODES] = ((tiles, lane_codes()[base.code].lines(n_in), LANE_BYTES), np.dtype("i1"))
        if base.column_scale:
            layout[COLUMN_SCALE] = ((n_in * (description.experts or 1),), np.dtype("i1"))
    if isinstance(base, PrngBlockBase) and base.seed_per == "row":
        layout[SEED_IDX] = ((n_out,), np.dtype("<i2"))
    if isinstance(base, PrngBlockBase) and base.seed_per == "block":
        blocks = -(-n_in // base.block)
        layout |= {SEED_IDX: ((n_out, blocks), np.dtype("<i2")), SEED_GAIN: ((n_out, blocks), np.dtype("i1"))}
    if isinstance(residual, CooResidual):
        layout[D_IDX] = ((n_out, residual.K), np.dtype("<i2" if n_in <= MAX_U16_COLUMNS else "<i4"))
        layout[D_VAL] = ((n_out, residual.K), np.dtype("<f2" if residual.vals == "fp16" else "i1"))
        if residual.vals == "int8":
            layout[D_SCALE] = ((n_out,), np.dtype("<f2"))
    if isinstance(residual, BlockResidual):
        layout[B_MAP] = ((n_out, residual.kept), np.dtype("<i2"))
        layout[B_VAL] = ((n_out, residual.kept, residual.block), np.dtype("<f2" if residual.vals == "fp16" else "i1"))
        if residual.vals == "int8":
            layout[B_SCALE] = ((n_out, residual.kept), np.dtype("<f2"))
    if isinstance(residual, CodebookResidual):
        layout[R_DICT] = ((residual.size, n_in), np.dtype("<f2"))
        layout[R_CODES] = ((n_out, residual.K), np.dtype("<i2"))
        layout[R_VALS] = ((n_out, residual.K), np.dtype("<f2"))
    if isinstance(residual, ProcSparseResidual):
        layout[P_MAP] = ((n_out, -(-n_in // (8 * residual.block))), np.dtype("i1"))
        layout[P_VAL] = ((n_out, residual.kept, residual.block), np.dtype("i1"))
        layout[P_SCALE] = ((n_out,), np.dtype("<f2"))
    return layout


def payload_bytes(description: TensorDescription) -> int:
    """Bytes of all payload tensors (without alignment)."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in payload_layout(description).values())
