"""From a SeedΔ file to what llama.cpp loads (the view) and what the hook computes with (the registry)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ConfigError, SourceModelError
from ..gguf.header import Header, TensorInfo
from ..gguf.model_file import MappedData, read_header
from ..gguf.reader import SeedDeltaFile, StoredTensor, open_seeddelta
from ..gguf.schema import LanesBase, ProcSparseResidual, TensorDescription, lane_code
from ..settings.runtime import RuntimeConfig
from .gates import GateMaker, MadeGate, input_groups, zero_inputs
from .library import ggml_abi
from .view import Piece, View, hole, make_view


@dataclass(frozen=True)
class PreparedModel:
    """A model made ready: `served` weights are in the registry, `dense` ones are dense from the start.

    `columns` are the matrices of an ordinary model that were transposed, with their kind; `gates` choose the inputs of
    matrices by columns, of these and of SeedΔ files. `payload` are the arrays of served weights in the mapped file;
    `guards` notice changes of the mapped files.
    """

    file_bytes: int
    served: dict[str, TensorDescription]
    dense: dict[str, TensorDescription]
    registry: _core.WeightRegistry
    view: View
    columns: dict[str, str] = field(default_factory=dict)
    gates: list[MadeGate] = field(default_factory=list)
    payload: list[npt.NDArray[np.generic]] = field(default_factory=list)
    guards: dict[Path, _core.FileGuard] = field(default_factory=dict)


def prepare(header: Header, fallback: str | os.PathLike[str] | None, config: RuntimeConfig) -> PreparedModel:
    """Check the file of a header, write the view, fill the registry. Payload and fallback are mapped, not read."""
    abi = ggml_abi()
    path, file = header.path, open_seeddelta(header, watch=True)
    guards = dict(file.guards)
    dense_model = None if fallback is None else read_header(fallback)
    dense = {name: tensor for name, tensor in file.tensors.items() if _dense_reason(tensor, config)}
    for name, tensor in dense.items():
        if dense_model is None:
            raise SourceModelError(
                f"{path}: tensor {name!r} {_dense_reason(tensor, config)} and must be computed densely; "
                "give the dense model as fallback (--seeddelta-fallback model.gguf)"
            )
    registry = _core.WeightRegistry(abi)
    served = {name: tensor for name, tensor in file.tensors.items() if name not in dense}
    gates = _register(
        registry, served, config, str(path), zero_inputs(file.header, [*file.header.tensors, *file.tensors])
    )
    if dense_model is not None:
        shapes = {name: _dense_tensor(dense_model, tensor).shape for name, tensor in served.items()}
        guards |= register_fallback(registry, shapes, dense_model)
    return PreparedModel(
        file_bytes=file.header.file_size,
        served={name: tensor.description for name, tensor in served.items()},
        dense={name: tensor.description for name, tensor in dense.items()},
        registry=registry,
        view=make_view(file.header, _pieces(file, dense, dense_model)),
        gates=gates,
        payload=[array for tensor in served.values() for array in tensor.arrays.values()],
        guards=guards,
    )


def _register(
    registry: _core.WeightRegistry,
    served: Mapping[str, StoredTensor],
    config: RuntimeConfig,
    path: str,
    zeros: frozenset[str],
) -> list[MadeGate]:
    """Fill the registry; matrices in column layout, and proc-sparse ones, get what chooses their inputs."""
    columns = {name: tensor for name, tensor in served.items() if tensor.description.is_column}
    sparse = {name: tensor for name, tensor in served.items() if config.skips and tensor.description.is_proc_sparse}
    if config.skips and not columns and not sparse:
        raise ConfigError(
            f"{path}: kwta, state-pack of the MLP and events skip inputs of matrices in column layout, or proc-sparse "
            "ones, and it has none; build it with --layout column or --column-tensor"
        )
    for name, tensor in served.items():
        if name not in columns and name not in sparse:
            registry.add(tensor.to_weight())
    shapes = {name: tensor.description.tensor_shape for name, tensor in (columns | sparse).items()}
    gates = GateMaker(config, shapes, path, zeros)
    for kind in (columns, sparse):
        for group in input_groups(kind, served.keys() - kind.keys()):
            squares = sum(np.square(input_norm(kind[name])) for name in group)
            block = max(_block_of(kind[name].description) for name in group)
            gate = gates.make(group, np.sqrt(squares, dtype=np.float32), block)
            for name in group:
                registry.add(kind[name].to_weight(), gate)
    return gates.made


def _block_of(description: TensorDescription) -> int:
    """Inputs of a matrix that are read together."""
    return description.residual.block if isinstance(description.residual, ProcSparseResidual) else 1


def input_norm(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    """Norms of the columns of a matrix, float32 [n_in]; in column layout those that the scales say.

    Hundreds of values of a code have nearly the same norm (of 576, within 0.3% on average).
    """
    base = tensor.description.base
    if tensor.description.is_proc_sparse:
        matrix = tensor.to_weight().dequantize()
        norm: npt.NDArray[np.float32] = np.sqrt(np.einsum("oi,oi->i", matrix, matrix), dtype=np.float32)
        return norm
    assert isinstance(base, LanesBase)
    scale = tensor.arrays["row_scale"].astype(np.float32)
    norm = np.abs(scale) * np.float32(base.scale * lane_code(base.code).deviation * tensor.description.shape[0] ** 0.5)
    return norm


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


def _pieces(file: SeedDeltaFile, dense: dict[str, StoredTensor], dense_model: Header | None) -> list[Piece]:
    def copied(info: TensorInfo) -> Piece:
        return Piece(info.name, info.shape, int(info.type), info.nbytes, (info.path, info.offset))

    pieces = [copied(file.header.tensors[name]) for name in file.dense_tensors]
    for name, tensor in file.tensors.items():
        if name in dense and dense_model is not None:
            pieces.append(copied(_dense_tensor(dense_model, tensor)))
        else:
            pieces.append(hole(name, tensor.description.tensor_shape))
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
