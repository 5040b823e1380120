"""SeedΔ or quantised GGUF → plain F16 or F32 GGUF that stock llama.cpp loads.

This makes the dense baseline of a comparison, and the check that the run time computes what is in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import RecipeError, SourceModelError
from . import schema
from .reader import SeedDeltaFile, is_seeddelta, open_seeddelta
from .source import CHUNK_ELEMENTS, SourceModel, open_source
from .writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf

_FILE_TYPE = {"f32": 0, "f16": 1}  # llama_ftype: ALL_F32, MOSTLY_F16


def dequantize(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    type: Literal["f16", "f32"] = "f16",
    progress: bool = True,
) -> Path:
    """Write a model with dense weights and return its path.

    Matrices get the type `type` (F16 rounds to nearest even), tensors of one dimension F32. Integer tensors are copied.
    SeedΔ tensors become Ŵ, at the place of their payload; all keys `seeddelta.*` go. A few MiB are in memory at a time.

    Raises FormatError or SourceModelError for an input that cannot be read, has NaN, or does not fit F16; OutputError
    when the output cannot be written (an existing one is left as it was).
    """
    src, dst = Path(src), Path(dst)
    if type not in _FILE_TYPE:
        raise RecipeError(f"type {type!r} is not known; choose f16 or f32")
    if not src.is_file():
        raise SourceModelError(f"{src}: no such file; give the GGUF model to dequantise")
    if dst.exists() and src.samefile(dst):
        raise RecipeError(f"{dst}: output and input are the same file; choose another output")
    wide = GGMLQuantizationType.F16 if type == "f16" else GGMLQuantizationType.F32
    stored = open_seeddelta(src) if is_seeddelta(src) else None
    source = SourceModel(stored.header) if stored is not None else open_source(src)
    plan = _plan(source, stored, wide)

    metadata: dict[str, Value] = copied_metadata(source.header, without=schema.PREFIX)
    metadata["general.file_type"] = Typed(_FILE_TYPE[type], GGUFValueType.UINT32)

    from tqdm.auto import tqdm

    total = sum(tensor.nbytes for tensor in plan)
    with tqdm(total=total, unit="B", unit_scale=True, desc="dequantize", disable=not progress) as bar:

        def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
            for piece in _pieces(source, stored, tensor):
                bar.update(piece.nbytes)
                yield piece

        write_gguf(dst, metadata, plan, chunks, alignment=source.header.alignment)
    return dst


def _plan(source: SourceModel, stored: SeedDeltaFile | None, wide: GGMLQuantizationType) -> list[PlannedTensor]:
    """Tensors of the output in file order; a converted one stands where its first payload stood."""
    converted = {} if stored is None else stored.tensors
    first = {f"{tensor.description.stem}.{next(iter(tensor.arrays))}": tensor for tensor in converted.values()}
    dense = set(source.tensors) if stored is None else set(stored.dense_tensors)
    plan = []
    for name, info in source.tensors.items():
        if name in first:
            plan.append(PlannedTensor(first[name].name, first[name].description.tensor_shape, wide))
        elif name in dense:
            keep = info.type.name.startswith("I") and info.type.name[1:].isdigit()
            kind = info.type if keep else GGMLQuantizationType.F32 if len(info.shape) == 1 else wide
            plan.append(PlannedTensor(name, info.shape, kind))
    return plan


def _pieces(source: SourceModel, stored: SeedDeltaFile | None, tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
    if stored is not None and tensor.name in stored.tensors:
        weight = stored.tensors[tensor.name].to_weight()
        rows = max(1, CHUNK_ELEMENTS // tensor.shape[-1])
        last = stored.tensors[tensor.name].description.rows
        for begin in range(0, last, rows):
            values = weight.dequantize(begin, min(begin + rows, last))
            yield _narrow(source, tensor, values)
    elif source.tensors[tensor.name].type == tensor.type:
        yield source.raw(tensor.name)
    else:
        for values in source.chunks(tensor.name):
            yield _narrow(source, tensor, values)


def _narrow(source: SourceModel, tensor: PlannedTensor, values: npt.NDArray[np.float32]) -> np.ndarray[Any, Any]:
    if tensor.type == GGMLQuantizationType.F32:
        return values
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise SourceModelError(f"{source.path}: tensor {tensor.name!r} does not fit F16; use --type f32")
    return half
