"""What a base leaves, as the arrays of a residual scheme (docs/format.md): coo, block and codebook_resid."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf import schema
from ..gguf.schema import BlockResidual, CodebookResidual, CooResidual, NoResidual, ProcSparseResidual
from .codebook import train_codebook

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]
Residual = CooResidual | BlockResidual | CodebookResidual | ProcSparseResidual | NoResidual


def needs_all_rows(residual: Residual) -> bool:
    """False when rows are chosen one by one, so that a matrix may be handled in pieces."""
    return isinstance(residual, CodebookResidual)


def residual_arrays(
    delta: F32, row_scale: F32, residual: Residual, importance: F32 | None, threads: int
) -> dict[str, Array]:
    """Suffix -> stored array for Δ float32[n_out, n_in], whose rows weigh `row_scale`² in the error and its columns
    `importance`."""
    if isinstance(residual, CooResidual):
        return _coo(delta, residual, importance, threads)
    if isinstance(residual, BlockResidual):
        return _block(delta, residual, importance)
    assert isinstance(residual, CodebookResidual)
    dictionary, codes, amplitudes = train_codebook(delta, row_scale, residual.size, residual.K, importance)
    return {schema.R_DICT: dictionary, schema.R_CODES: codes.view("<i2"), schema.R_VALS: amplitudes}


def _coo(delta: F32, residual: CooResidual, importance: F32 | None, threads: int) -> dict[str, Array]:
    """The K entries of a row with the largest |Δ| or sqrt(importance)·|Δ|."""
    chosen, values = _core.coo_select(delta, residual.K, importance=importance, threads=threads)
    index = chosen.astype("<i4") if delta.shape[1] > schema.MAX_U16_COLUMNS else chosen.astype("<u2").view("<i2")
    if residual.vals == "fp16":
        return {schema.D_IDX: index, schema.D_VAL: _half(values)}
    steps, scale = _bytes(values)
    return {schema.D_IDX: index, schema.D_VAL: steps, schema.D_SCALE: scale}


def _block(delta: F32, residual: BlockResidual, importance: F32 | None) -> dict[str, Array]:
    """The blocks of a row with the largest (weighted) energy Σ importance·Δ²; the first ones win ties."""
    n_out, n_in = delta.shape
    padded = np.zeros((n_out, -(-n_in // residual.block) * residual.block), np.float32)
    padded[:, :n_in] = delta
    blocks = padded.reshape(n_out, -1, residual.block)
    weight = np.zeros(padded.shape[1], np.float32)
    weight[:n_in] = 1 if importance is None else importance
    energy = np.einsum("obi,obi,bi->ob", blocks, blocks, weight.reshape(-1, residual.block), dtype=np.float64)
    chosen = np.sort(np.argsort(-energy, axis=1, kind="stable")[:, : residual.kept], axis=1)
    values = np.take_along_axis(blocks, chosen[:, :, None], axis=1)
    stored: dict[str, Array] = {schema.B_MAP: chosen.astype("<u2").view("<i2")}
    if residual.vals == "fp16":
        return stored | {schema.B_VAL: _half(values)}
    steps, scale = _bytes(values)
    return stored | {schema.B_VAL: steps, schema.B_SCALE: scale}


def _half(values: F32) -> npt.NDArray[np.float16]:
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(values, -limit, limit).astype("<f2")


def _bytes(values: F32) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """int8 steps and the float16 scale of each last axis."""
    scale = _half(np.abs(values).max(axis=-1) / np.float32(127))
    wide = scale.astype(np.float32)[..., None]
    steps = np.divide(values, wide, out=np.zeros_like(values), where=wide != 0)
    return np.clip(np.rint(steps), -127, 127).astype(np.int8), scale
