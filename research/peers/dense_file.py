"""A dense F16 model with other weights in the matrices of its layers, for any llama.cpp to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from seeddelta.gguf.names import split_name
from seeddelta.gguf.source import SourceModel
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, write_gguf

F32 = npt.NDArray[np.float32]


def layer_matrices(source: SourceModel) -> list[str]:
    """Names of the matrices of the layers, in the order of the file."""
    return [name for name in source.tensors if split_name(name) is not None]


def write_with(source: SourceModel, output: Path, matrices: Mapping[str, F32]) -> None:
    """Write the model with `matrices`, float32[n_out, n_in] by name, as F16; everything else as it is.

    Raises ValueError for a matrix that the model has not, or that has another shape.
    """
    for name, values in matrices.items():
        if name not in source.tensors or source.tensors[name].shape != values.shape:
            raise ValueError(f"{source.path} has no {name} of {values.shape}")

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        if tensor.name in matrices:
            yield matrices[tensor.name].astype(np.float16)
        else:
            yield source.raw(tensor.name)

    plan = [
        PlannedTensor(name, info.shape, GGMLQuantizationType.F16 if name in matrices else info.type)
        for name, info in source.tensors.items()
    ]
    write_gguf(output, copied_metadata(source.header), plan, chunks)
