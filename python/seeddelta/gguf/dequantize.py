"""SeedΔ or quantized GGUF → plain GGUF of one type that stock llama.cpp loads.

This makes the dense baseline of a comparison, and the check that the run time computes what is in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import MissingFileError, RecipeError, SourceModelError
from ..numeric import row_ranges
from ..storage.output import check_writable, reading
from . import names, schema
from .header import TensorInfo
from .hub import located
from .reader import SeedDeltaFile, is_seeddelta, open_seeddelta
from .source import SourceModel, open_source
from .writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf

# what gguf-py writes, with the numbers of llama.h, enum llama_ftype
TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q5_1": 9, "q5_0": 8, "q4_1": 3, "q4_0": 2}


def dequantize(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    type: str = "f16",
    progress: bool = True,
) -> Path:
    """Write a model with dense weights and return its path.

    Matrices get the type `type`, one of TYPES (F16 rounds to nearest even), tensors of one dimension F32. With a
    quantized type (by gguf-py, without an importance matrix) the matrices of the layers, embedding and head get it,
    where it fits their rows; other matrices become F16. Integer tensors are copied. SeedΔ tensors become Ŵ, at the
    place of their payload; all keys `seeddelta.*` go. A few MiB are in memory at a time.

    Raises FormatError or SourceModelError for an input that cannot be read, has NaN, or does not fit F16; OutputError
    when the output cannot be written (an existing one is left as it was).
    """
    src, dst = located(src), Path(dst)
    type = type.lower()
    if type not in TYPES:
        raise RecipeError(f"type {type!r} is not known; choose from {', '.join(TYPES)}")
    if not src.is_file():
        raise MissingFileError(f"{src}: no such file; give the GGUF model to dequantize")
    wide = GGMLQuantizationType[type.upper()]
    with reading([src]):
        check_writable(dst)
    stored = open_seeddelta(src) if is_seeddelta(src) else None
    source = SourceModel(stored.header) if stored is not None else open_source(src)
    plan = _plan(source, stored, wide)

    metadata: dict[str, Value] = copied_metadata(source.header, without=schema.PREFIX)
    metadata["general.file_type"] = Typed(TYPES[type], GGUFValueType.UINT32)

    from ..progress import tqdm

    total = sum(tensor.nbytes for tensor in plan)
    with tqdm(total=total, unit="B", unit_scale=True, desc="dequantize", disable=not progress) as bar:

        def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
            for piece in _pieces(source, stored, tensor):
                bar.update(piece.nbytes)
                yield piece

        with reading([src]):
            write_gguf(dst, metadata, plan, chunks)
    return dst


def _plan(source: SourceModel, stored: SeedDeltaFile | None, wide: GGMLQuantizationType) -> list[PlannedTensor]:
    """Tensors of the output in file order; a converted one stands where its first payload stood."""
    converted = {} if stored is None else stored.tensors
    first = {f"{tensor.description.stem}.{next(iter(tensor.arrays))}": tensor for tensor in converted.values()}
    dense = set(source.tensors) if stored is None else set(stored.dense_tensors)
    plan = []
    for name, info in source.tensors.items():
        if name in first:
            shape = first[name].description.tensor_shape
            plan.append(PlannedTensor(first[name].name, shape, _type_of(first[name].name, shape, wide)))
        elif name in dense:
            plan.append(PlannedTensor(name, info.shape, _type_of_kept(info, wide)))
    return plan


def _type_of(name: str, shape: tuple[int, ...], wide: GGMLQuantizationType) -> GGMLQuantizationType:
    if len(shape) == 1:
        return GGMLQuantizationType.F32
    block = gguf.GGML_QUANT_SIZES[wide][0]
    return wide if block == 1 or (names.is_matrix(name) and shape[-1] % block == 0) else GGMLQuantizationType.F16


def _type_of_kept(info: TensorInfo, wide: GGMLQuantizationType) -> GGMLQuantizationType:
    """Integers stay; so do small convolutions, routers and the like, most of which llama.cpp wants as they are."""
    numbers = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
    integer = info.type.name.startswith("I") and info.type.name[1:].isdigit()
    special = info.type in numbers and len(info.shape) > 1 and not names.is_matrix(info.name)
    if integer or (special and wide != GGMLQuantizationType.F32):
        return info.type
    return _type_of(info.name, info.shape, wide)


def _pieces(source: SourceModel, stored: SeedDeltaFile | None, tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
    if stored is not None and tensor.name in stored.tensors:
        weight = stored.tensors[tensor.name].to_weight()
        for begin, end in row_ranges(stored.tensors[tensor.name].description.rows, tensor.shape[-1]):
            yield _narrow(source, tensor, weight.dequantize(begin, end))
    elif source.tensors[tensor.name].type == tensor.type:
        yield source.raw(tensor.name)
    else:
        for values in source.chunks(tensor.name):
            yield _narrow(source, tensor, values)


def _narrow(source: SourceModel, tensor: PlannedTensor, values: npt.NDArray[np.float32]) -> np.ndarray[Any, Any]:
    if tensor.type == GGMLQuantizationType.F32:
        return values
    if tensor.type != GGMLQuantizationType.F16:
        return np.asarray(gguf.quants.quantize(values, tensor.type))
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise SourceModelError(f"{source.path}: tensor {tensor.name!r} does not fit F16; use --type f32")
    return half
