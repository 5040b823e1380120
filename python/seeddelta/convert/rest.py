"""What stays beside the converted weights: which of it is written in a smaller type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf.quants
import numpy as np
from gguf import GGMLQuantizationType as Kind

from ..gguf import targets
from ..gguf.header import Header
from ..gguf.source import SourceModel
from ..gguf.writer import PlannedTensor

_FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
_BLOCK = gguf.GGML_QUANT_SIZES[Kind.Q8_0][0]


def rest_types(header: Header, rest: str) -> dict[str, Kind]:
    """Types of the matrices that cannot be converted and that change with `rest` (q8_0, f16 or keep).

    These are matrices that no graph of the decoder uses. What a user leaves out (--targets, --layers, dense) is none of
    them, nor are vectors, routers and convolutions.
    """
    if rest not in ("q8_0", "f16"):
        return {}
    kind = Kind[rest.upper()]
    idle = targets.idle_tensors(header)
    return {
        name: kind
        for name, info in header.tensors.items()
        if name in idle
        and info.type in _FLOATS
        and info.type != kind
        and len(info.shape) > 1
        and (kind != Kind.Q8_0 or info.shape[-1] % _BLOCK == 0)
    }


def kept_tensor(source: SourceModel, name: str, rest: dict[str, Kind]) -> PlannedTensor:
    """A tensor that is not converted, as it is written."""
    info = source.tensors[name]
    return PlannedTensor(name, info.shape, rest.get(name, info.type))


def kept_chunks(source: SourceModel, tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
    """Its bytes. Raises SourceModelError for NaN in what has to be rounded."""
    if tensor.type == source.tensors[tensor.name].type:
        yield source.raw(tensor.name)
        return
    for values in source.chunks(tensor.name):
        yield values.astype(np.float16) if tensor.type == Kind.F16 else gguf.quants.quantize(values, tensor.type)
