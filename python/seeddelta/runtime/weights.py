"""From a SeedΔ file to what llama.cpp loads (the stub file) and what the hook computes with (the registry)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import SourceModelError
from ..gguf.header import Header, TensorInfo
from ..gguf.model_file import MappedData, read_header
from ..gguf.reader import SeedDeltaFile, StoredTensor, open_seeddelta
from ..gguf.schema import TensorDescription
from ..settings.runtime import RuntimeConfig
from .library import ggml_abi
from .skipping import Groups, add_weights, skip_settings
from .stub_file import StubFile, StubTensor, make_stub_file, placeholder


@dataclass(frozen=True)
class PreparedModel:
    """A model made ready: `served` weights are in the registry, `dense` ones are dense from the start.

    `columns` are the matrices of an ordinary model that were transposed, with their kind; `gates` are the matrices
    whose inputs are chosen together, by `skipping`. `payload` are the arrays of served weights in the mapped file;
    `guards` notice changes of the mapped files.
    """

    file_bytes: int
    served: dict[str, TensorDescription]
    dense: dict[str, TensorDescription]
    registry: _core.WeightRegistry
    stub_file: StubFile
    columns: dict[str, str] = field(default_factory=dict)
    gates: Groups = field(default_factory=list)
    skipping: _core.SkipSettings | None = None
    payload: list[npt.NDArray[np.generic]] = field(default_factory=list)
    guards: dict[Path, _core.FileGuard] = field(default_factory=dict)


def prepare(header: Header, fallback: str | os.PathLike[str] | None, config: RuntimeConfig) -> PreparedModel:
    """Check the file of a header, write the stub file, fill the registry. Payload and fallback are mapped, not read."""
    abi = ggml_abi()
    path, file = header.path, open_seeddelta(header, watch=True)
    guards = dict(file.guards)
    dense_model = None if fallback is None else read_header(fallback)
    dense = {name: tensor for name, tensor in file.tensors.items() if _dense_reason(tensor, config)}
    for name, tensor in dense.items():
        if dense_model is None:
            raise SourceModelError(
                f"{path}: tensor {name!r} {_dense_reason(tensor, config)} and must be computed densely; "
                "give the original model as fallback (--seeddelta-fallback model.gguf)"
            )
    registry, skipping = _core.WeightRegistry(abi), skip_settings(config)
    served = {name: tensor for name, tensor in file.tensors.items() if name not in dense}
    weights = [tensor.to_weight() for tensor in served.values()]
    gates = add_weights(registry, weights, skipping, file.header, [*file.header.tensors, *file.tensors])
    if dense_model is not None:
        shapes = {name: _dense_tensor(dense_model, tensor).shape for name, tensor in served.items()}
        guards |= register_fallback(registry, shapes, dense_model)
    return PreparedModel(
        file_bytes=file.header.file_size,
        served={name: tensor.description for name, tensor in served.items()},
        dense={name: tensor.description for name, tensor in dense.items()},
        registry=registry,
        stub_file=make_stub_file(file.header, _pieces(file, dense, dense_model)),
        gates=gates,
        skipping=skipping,
        payload=[array for tensor in served.values() for array in tensor.arrays.values()],
        guards=guards,
    )


def _dense_reason(tensor: StoredTensor, config: RuntimeConfig) -> str | None:
    """Why a tensor is dense from the start, or None."""
    if tensor.description.unsafe:
        return f"is marked unsafe by its build (relative error {tensor.description.norms.error:.4g})"
    if tensor.description.is_proc_sparse and not config.proc_sparse:
        return "is proc-sparse, which is switched off,"
    error = tensor.description.norms.error
    if config.gap is not None and error > config.gap:
        return f"has the relative error {error:.4g}, above the gap {config.gap:g},"
    if any(fnmatchcase(tensor.name, pattern) for pattern in config.dense):
        return "is on the list of dense tensors"
    return None


def _pieces(file: SeedDeltaFile, dense: dict[str, StoredTensor], dense_model: Header | None) -> list[StubTensor]:
    def copied(info: TensorInfo) -> StubTensor:
        return StubTensor(info.name, info.shape, int(info.type), info.nbytes, (info.path, info.offset))

    pieces = [copied(file.header.tensors[name]) for name in file.dense_tensors]
    for name, tensor in file.tensors.items():
        if name in dense and dense_model is not None:
            pieces.append(copied(_dense_tensor(dense_model, tensor)))
        else:
            pieces.append(placeholder(name, tensor.description.tensor_shape))
    return pieces


def _dense_tensor(dense_model: Header, tensor: StoredTensor) -> TensorInfo:
    return tensor.dense_copy(dense_model, "give the model that the SeedΔ file was made from as fallback")


def register_fallback(
    registry: _core.WeightRegistry, shapes: Mapping[str, tuple[int, ...]], dense_model: Header
) -> dict[Path, _core.FileGuard]:
    """Dense copies for weights of the registry, by name and shape [n_out, n_in]; the file is mapped, not read. Returns
    what notices its changes."""
    data = MappedData(dense_model, watch=True)
    for name, shape in shapes.items():
        info = dense_model.tensors[name]
        rows = data(info).reshape(int(np.prod(shape[:-1])), -1)
        try:
            registry.set_dense(name, rows, int(info.type))
        except ValueError as error:
            raise SourceModelError(f"{dense_model.path}: {error}; convert the fallback to F16") from error
    return data.guards
