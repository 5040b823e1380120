"""The covariance file: a GGUF with E[x̂ x̂ᵀ] of every distinct input, x̂ = x / ‖x‖ · sqrt(n_in).

Keys `general.type` = "seeddelta.covariance", `seeddelta.covariance.version` = 1, `.normalized` = true, `.tokens`,
`.chunks`, `.ctx`, `.model`, `.model_sha256`, `.text`, `.text_sha256`, `.shared` (array of
"matrix=representative"). Tensors `<representative>.cov` F32 [n_in, n_in] and `<representative>.in_norm2` F32 [n_in],
the diagonal summed in double precision (optional: an importance can be had without reading the matrix).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import CalibrationWarning, FormatError, ImatrixError, some
from ..gguf.header import Header
from ..gguf.model_file import read_header
from ..gguf.source import file_sha256
from ..gguf.writer import PlannedTensor, Typed, Value, write_gguf
from ..numeric import row_ranges
from .capture import Capture

F32 = npt.NDArray[np.float32]
_TYPE = "seeddelta.covariance"
_SUFFIX, _DIAGONAL = ".cov", ".in_norm2"
_REMEDY = "make it again with seeddelta imatrix --hessian"


class Covariance:
    """An open covariance file. Matrices are read when asked for; a context manager is not needed."""

    def __init__(self, header: Header) -> None:
        self.path = Path(header.path)
        self._header = header
        metadata = header.metadata
        self.tokens = metadata.scalar("seeddelta.covariance.tokens", int, -1)
        if self.tokens < 0:
            raise ValueError("the number of tokens is missing")
        self._shared = dict(str(pair).split("=", 1) for pair in metadata["seeddelta.covariance.shared"])

    @property
    def tensors(self) -> tuple[str, ...]:
        """Matrices whose inputs are known."""
        return tuple(self._shared)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file, hex."""
        return file_sha256(self.path)

    def has(self, name: str) -> bool:
        """True when the input of a matrix is known, and was not zero in every token."""
        return name in self._shared and name not in self.silent

    @cached_property
    def silent(self) -> frozenset[str]:
        """Matrices whose input was zero in every token: their covariance says nothing."""
        zero = {same for same in set(self._shared.values()) if not self._diagonal(same).any()}
        return frozenset(name for name, same in self._shared.items() if same in zero)

    def _diagonal(self, same: str) -> F32:
        if same + _DIAGONAL in self._header.tensors:
            return self._view(same + _DIAGONAL)
        return np.diagonal(self._view(same + _SUFFIX))

    def representative(self, name: str) -> str:
        """The matrix under whose name the covariance of the input of `name` stands."""
        if name not in self._shared:
            raise ImatrixError(f"{self.path}: no covariance for the input of {name!r}; {_REMEDY}")
        return self._shared[name]

    def matrix(self, name: str) -> F32:
        """E[x̂ x̂ᵀ] of the input of a matrix, float32 [n_in, n_in], symmetric: a read-only view of the file.

        Raises ImatrixError for values that no covariance has.
        """
        same = self.representative(name)
        values = self._view(same + _SUFFIX)
        self._check(same, values, np.diagonal(values))
        return values

    def importance(self, name: str) -> F32:
        """Diagonal with the mean 1, at least 1e-7, float32 [n_in]."""
        same = self.representative(name)
        if same + _DIAGONAL in self._header.tensors:
            diagonal = self._view(same + _DIAGONAL)
            self._check(same, diagonal, diagonal)
        else:
            diagonal = np.diagonal(self.matrix(name))
        weights = diagonal.astype(np.float64)
        return np.asarray(np.maximum(weights / weights.mean(), 1e-7), np.float32)

    def _view(self, tensor: str) -> F32:
        info = self._header.tensors[tensor]
        try:
            return np.asarray(np.memmap(self.path, "<f4", "r", info.offset, info.shape))
        except (OSError, ValueError) as error:
            raise ImatrixError(f"{self.path}: {tensor!r} cannot be read ({error}); {_REMEDY}") from error

    def _check(self, same: str, values: F32, diagonal: F32) -> None:
        if not np.isfinite(values).all() or (diagonal < 0).any():
            raise ImatrixError(f"{self.path}: the covariance {same!r} is not finite or not positive; {_REMEDY}")


def open_covariance(path: str | os.PathLike[str]) -> Covariance:
    """Open and check a covariance file. Raises ImatrixError naming the file, the tensor and the remedy."""
    path = Path(path)
    try:
        header = read_header(path)
        if header.metadata.scalar("general.type", str, "") != _TYPE:
            raise ImatrixError(f"{path}: not a covariance file; {_REMEDY}")
        if header.metadata.scalar("seeddelta.covariance.version", int, 0) != 1:
            raise ImatrixError(f"{path}: a covariance file of an unknown version; update seeddelta or {_REMEDY}")
        if not header.metadata.scalar("seeddelta.covariance.normalized", bool, True):
            raise ImatrixError(f"{path}: the covariance is not of normalized inputs; {_REMEDY}")
        covariance = Covariance(header)
    except OSError as error:
        raise ImatrixError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (FormatError, KeyError, ValueError, TypeError) as error:
        raise ImatrixError(f"{path}: not a whole covariance file ({error}); {_REMEDY}") from error
    for name in covariance.tensors:
        info = header.tensors.get(covariance.representative(name) + _SUFFIX)
        if info is None or info.type != GGMLQuantizationType.F32 or len(info.shape) != 2 or len(set(info.shape)) != 1:
            raise ImatrixError(f"{path}: the covariance of the input of {name!r} is missing or not square; {_REMEDY}")
        diagonal = header.tensors.get(covariance.representative(name) + _DIAGONAL)
        if diagonal is not None and (diagonal.type != GGMLQuantizationType.F32 or diagonal.shape != info.shape[:1]):
            raise ImatrixError(f"{path}: the diagonal of the covariance of {name!r} does not fit it; {_REMEDY}")
    return covariance


def warn_of_zeros(path: Path, model: Path) -> None:
    """Warn of the inputs in a covariance file that were zero in every token: nothing is known of their columns."""
    if silent := sorted(open_covariance(path).silent):
        warnings.warn(
            f"{model}: the input of {some(silent)} is zero in every token of the text; "
            "nothing is known of its columns, which count alike",
            CalibrationWarning,
            stacklevel=3,
        )


def write_covariance(path: str | os.PathLike[str], captured: Capture) -> None:
    """Write the covariances of a capture. Raises OutputError."""
    shared = captured.representatives
    metadata: dict[str, Value] = {
        "general.type": Typed(_TYPE, GGUFValueType.STRING),
        "seeddelta.covariance.version": Typed(1, GGUFValueType.UINT32),
        "seeddelta.covariance.normalized": Typed(True, GGUFValueType.BOOL),
        "seeddelta.covariance.tokens": Typed(captured.tokens, GGUFValueType.UINT64),
        "seeddelta.covariance.chunks": Typed(captured.chunks, GGUFValueType.UINT32),
        "seeddelta.covariance.ctx": Typed(captured.ctx, GGUFValueType.UINT32),
        "seeddelta.covariance.model": Typed(captured.model_name, GGUFValueType.STRING),
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
        n_in = captured.hook.square(name).shape[-1]
        plan.append(PlannedTensor(name + _SUFFIX, (n_in, n_in), GGMLQuantizationType.F32))
        plan.append(PlannedTensor(name + _DIAGONAL, (n_in,), GGMLQuantizationType.F32))

    def pieces(tensor: PlannedTensor) -> Iterable[Any]:
        if tensor.name.endswith(_DIAGONAL):
            name = tensor.name.removesuffix(_DIAGONAL)
            yield np.asarray(captured.hook.norm_square(name).sum(axis=0) / captured.hook.tokens(name), "<f4")
        else:
            name = tensor.name.removesuffix(_SUFFIX)
            tokens = np.float32(captured.hook.tokens(name))
            for begin, end in row_ranges(*tensor.shape):
                yield captured.hook.covariance_rows(name, begin, end) / tokens

    write_gguf(path, metadata, plan, pieces)
