"""Keys `seeddelta.*` of a file that is built (docs/reference/format.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gguf import GGUFValueType

from .. import __version__
from ..calibrate.text import Windows
from ..gguf import schema
from ..gguf.descriptions import description_arrays
from ..gguf.schema import TensorDescription
from ..gguf.source import SourceModel, file_sha256
from ..gguf.writer import Typed, Value
from .describe import proc_base
from .recipe import Recipe


def own_metadata(
    recipe: Recipe,
    source: SourceModel,
    descriptions: Sequence[TensorDescription],
    sha256: str,
    hessian_sha256: str | None,
    gradient_sha256: str | None = None,
) -> dict[str, Value]:
    """The keys with their types. Nothing here may depend on the time, the folder or the number of threads."""

    def text(value: str) -> Value:
        return Typed(value, GGUFValueType.STRING)

    def u32(value: int) -> Value:
        return Typed(value, GGUFValueType.UINT32)

    def f32(value: float) -> Value:
        return Typed(value, GGUFValueType.FLOAT32)

    base_kind: str = recipe.base_kind
    base_scale, width = recipe.base_scale or 0.0, recipe.block
    if recipe.proc_sparse:
        base_kind, base_scale, width = proc_base(recipe).kind, recipe.proc_base_scale, recipe.proc_block
    values: dict[str, Value] = {
        schema.KEY_ENABLED: Typed(True, GGUFValueType.BOOL),
        schema.KEY_VERSION: u32(schema.VERSION),
        schema.KEY_SCHEME: u32(
            schema.RESIDUALS["proc_sparse" if recipe.proc_sparse else recipe.residual_scheme].number
        ),
        schema.KEY_BASE_KIND: u32(schema.BASES[base_kind].number),
        schema.KEY_BASE_SEED: Typed(recipe.seed, GGUFValueType.UINT64),
        schema.KEY_BASE_SCALE: f32(base_scale),
        schema.KEY_ROW_SCALE: Typed(True, GGUFValueType.BOOL),
        schema.KEY_ROW_SCALE_TYPE: text(recipe.row_scale),
        schema.KEY_GAP: f32(recipe.seeddelta_gap),
        schema.KEY_SOURCE_FILE: text(source.path.name),
        schema.KEY_SOURCE_SHA256: text(sha256),
        schema.KEY_RECIPE: text(json.dumps(recipe.provenance(), sort_keys=True)),
        schema.KEY_GENERATOR: text(f"seeddelta {__version__}"),
    }
    if recipe.proc_sparse and recipe.proc_fanout >= 1:
        values[schema.KEY_RESID_K] = u32(round(recipe.proc_fanout))
    elif not recipe.proc_sparse and recipe.residual_scheme != "none" and recipe.K != "auto":
        values[schema.KEY_RESID_K] = u32(recipe.entries_for(1 << 20, 1 << 20))
    if recipe.proc_sparse or recipe.residual_scheme == "block":
        values[schema.KEY_RESID_BLOCK] = u32(width)
    if recipe.imatrix is not None:
        values[schema.KEY_IMATRIX_FILE] = text(recipe.imatrix.name)
        values[schema.KEY_IMATRIX_SHA256] = text(file_sha256(recipe.imatrix))
        values[schema.KEY_IMATRIX_POWER] = f32(recipe.imatrix_power)
        values[schema.KEY_IMATRIX_EPS] = f32(recipe.imatrix_eps)
    if recipe.hessian is not None and hessian_sha256 is not None:
        values[schema.KEY_HESSIAN_FILE] = text(recipe.hessian.name)
        values[schema.KEY_HESSIAN_SHA256] = text(hessian_sha256)
        values[schema.KEY_HESSIAN_DAMP] = f32(recipe.hessian_damp)
    if recipe.gradient is not None and gradient_sha256 is not None:
        values[schema.KEY_GRADIENT_FILE] = text(recipe.gradient.name)
        values[schema.KEY_GRADIENT_SHA256] = text(gradient_sha256)
        values[schema.KEY_GRADIENT_DAMP] = f32(recipe.gradient_damp)
    return values | description_arrays(descriptions)


def calibration_metadata(windows: Windows, calibrate: str) -> dict[str, Value]:
    """Keys of the text and the way of a calibration."""
    return {
        schema.KEY_CALIBRATION_TEXT: Typed(windows.name, GGUFValueType.STRING),
        schema.KEY_CALIBRATION_SHA256: Typed(windows.sha256, GGUFValueType.STRING),
        schema.KEY_CALIBRATION_CHUNKS: Typed(windows.chunks, GGUFValueType.UINT32),
        schema.KEY_CALIBRATION_MODE: Typed(calibrate, GGUFValueType.STRING),
        schema.KEY_CALIBRATION_CTX: Typed(windows.ctx, GGUFValueType.UINT32),
    }
