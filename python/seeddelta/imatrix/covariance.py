"""The covariance file: a GGUF with E[x̂ x̂ᵀ] of every distinct input, x̂ = x / ‖x‖ · sqrt(n_in).

Keys `general.type` = "seeddelta.covariance", `seeddelta.covariance.version` = 1, `.tokens`, `.model_sha256`,
`.text`, `.text_sha256`, `.shared` (array of "matrix=representative"). Tensors `<representative>.cov` F32 [n_in, n_in].
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import FormatError, ImatrixError
from ..gguf.header import Header, read_header
from ..gguf.source import file_sha256
from ..gguf.writer import PlannedTensor, Typed, Value, write_gguf
from .capture import Capture

F32 = npt.NDArray[np.float32]
_TYPE = "seeddelta.covariance"
_SUFFIX = ".cov"
_REMEDY = "make it again with seeddelta imatrix --hessian"


class Covariance:
    """An open covariance file. Matrices are read when asked for; a context manager is not needed."""

    def __init__(self, header: Header) -> None:
        self.path = Path(header.path)
        self._header = header
        metadata = header.metadata
        self.tokens = int(metadata["seeddelta.covariance.tokens"])
        self._shared = dict(str(pair).split("=", 1) for pair in metadata["seeddelta.covariance.shared"])
        self._sha256: str | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Matrices whose inputs are known."""
        return tuple(self._shared)

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, hex."""
        if self._sha256 is None:
            self._sha256 = file_sha256(self.path)
        return self._sha256

    def has(self, name: str) -> bool:
        return name in self._shared

    def representative(self, name: str) -> str:
        """The matrix under whose name the covariance of the input of `name` stands."""
        if name not in self._shared:
            raise ImatrixError(f"{self.path}: no covariance for the input of {name!r}; {_REMEDY}")
        return self._shared[name]

    def matrix(self, name: str) -> F32:
        """E[x̂ x̂ᵀ] of the input of a matrix, float32 [n_in, n_in], symmetric. Raises ImatrixError."""
        same = self.representative(name)
        info = self._header.tensors[same + _SUFFIX]
        values = np.fromfile(self.path, "<f4", info.shape[0] ** 2, offset=info.offset).reshape(info.shape)
        if not np.isfinite(values).all() or (np.diagonal(values) < 0).any() or not np.diagonal(values).any():
            raise ImatrixError(f"{self.path}: the covariance {same!r} is not finite or not positive; {_REMEDY}")
        return values

    def importance(self, name: str) -> F32:
        """Diagonal with the mean 1, at least 1e-7, float32 [n_in]."""
        diagonal = np.diagonal(self.matrix(name)).astype(np.float64)
        return np.asarray(np.maximum(diagonal / diagonal.mean(), 1e-7), np.float32)


def open_covariance(path: str | os.PathLike[str]) -> Covariance:
    """Open and check a covariance file. Raises ImatrixError naming the file, the tensor and the remedy."""
    path = Path(path)
    try:
        header = read_header(path)
        if header.metadata.get("general.type") != _TYPE:
            raise ImatrixError(f"{path}: not a covariance file; {_REMEDY}")
        if header.metadata.get("seeddelta.covariance.version") != 1:
            raise ImatrixError(f"{path}: a covariance file of an unknown version; update seeddelta or {_REMEDY}")
        covariance = Covariance(header)
    except OSError as error:
        raise ImatrixError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (FormatError, KeyError, ValueError, TypeError) as error:
        raise ImatrixError(f"{path}: not a whole covariance file ({error}); {_REMEDY}") from error
    for name in covariance.tensors:
        info = header.tensors.get(covariance.representative(name) + _SUFFIX)
        if info is None or info.type != GGMLQuantizationType.F32 or len(info.shape) != 2 or len(set(info.shape)) != 1:
            raise ImatrixError(f"{path}: the covariance of the input of {name!r} is missing or not square; {_REMEDY}")
    return covariance


def write_covariance(path: str | os.PathLike[str], captured: Capture) -> None:
    """Write the covariances of a capture. Raises OutputError."""
    shared = captured.representatives
    metadata: dict[str, Value] = {
        "general.type": Typed(_TYPE, GGUFValueType.STRING),
        "seeddelta.covariance.version": Typed(1, GGUFValueType.UINT32),
        "seeddelta.covariance.tokens": Typed(captured.tokens, GGUFValueType.UINT64),
        "seeddelta.covariance.model_sha256": Typed(captured.model_sha256, GGUFValueType.STRING),
        "seeddelta.covariance.text": Typed(captured.text_name, GGUFValueType.STRING),
        "seeddelta.covariance.text_sha256": Typed(captured.text_sha256, GGUFValueType.STRING),
        "seeddelta.covariance.shared": Typed(
            [f"{name}={same}" for name, same in sorted(shared.items())], GGUFValueType.ARRAY, GGUFValueType.STRING
        ),
    }
    inputs = sorted(set(shared.values()))
    plan = []
    for name in inputs:
        n_in = captured.hook.square(name).size
        plan.append(PlannedTensor(name + _SUFFIX, (n_in, n_in), GGMLQuantizationType.F32))

    def pieces(tensor: PlannedTensor) -> Iterable[Any]:
        name = tensor.name.removesuffix(_SUFFIX)
        yield np.asarray(captured.hook.covariance(name) / np.float32(captured.hook.tokens(name)), "<f4")

    write_gguf(path, metadata, plan, pieces)
