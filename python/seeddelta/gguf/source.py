"""An original as a source of float32 matrices: F32, F16, BF16 and every quantized type that gguf-py or ggml knows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from ..errors import FormatError, MissingFileError, SourceModelError
from ..numeric import row_ranges
from . import schema
from .ggml_types import by_ggml
from .header import Header, TensorInfo
from .hub import located
from .model_file import MappedData, read_header


class SourceModel:
    """An open dense GGUF model. Tensors are read from the mapped file when asked for."""

    def __init__(self, header: Header) -> None:
        self.path: Path = header.path
        self.header = header
        self.metadata = header.metadata
        self._data = MappedData(header)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.header.tensors

    @property
    def n_layers(self) -> int | None:
        """`<architecture>.block_count`, or None when the file has none."""
        count = self.metadata.get(f"{self.metadata.scalar('general.architecture', str, '')}.block_count")
        return count if isinstance(count, int) else None

    def raw(self, name: str) -> np.ndarray[Any, Any]:
        """Bytes of a tensor, uint8[nbytes], a view of the file."""
        return self._data(self.tensors[name])

    def chunks(self, name: str, first: int = 0, last: int | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """Consecutive rows of a tensor as float32[rows, n_in] (leading dimensions are flattened), those from `first` to
        before `last`.

        Raises SourceModelError for a type that cannot be dequantized and for NaN or infinite weights.
        """
        info = self.tensors[name]
        n_in = info.shape[-1]
        raw = self.raw(name).reshape(-1, info.nbytes * n_in // int(np.prod(info.shape)))
        for begin, end in row_ranges(raw[first:last].shape[0], n_in):
            begin, end = first + begin, first + end
            values = self._dequantize(info, raw[begin:end]).reshape(-1, n_in)
            if not np.isfinite(values).all():
                row, column = (int(i[0]) for i in np.nonzero(~np.isfinite(values)))
                raise SourceModelError(
                    f"{self.path}: tensor {name!r} has {values[row, column]} at row {begin + row}, column {column}; "
                    "the model is damaged, download or convert it again"
                )
            yield values

    def matrix(self, name: str, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """A tensor, or some of its rows, as float32[n_out, n_in], C-contiguous. Raises as `chunks`."""
        info = self.tensors[name]
        rows = range(int(np.prod(info.shape[:-1])))[first:last]
        out = np.empty((len(rows), info.shape[-1]), np.float32)
        begin = 0
        for chunk in self.chunks(name, first, last):
            out[begin : begin + len(chunk)] = chunk
            begin += len(chunk)
        return out

    def _dequantize(self, info: TensorInfo, raw: np.ndarray[Any, Any]) -> npt.NDArray[np.float32]:
        # what a view as float would need: a chunk of bytes that starts anywhere
        raw = np.ascontiguousarray(raw)
        if not _known_to_gguf(info.type):
            dequantize = by_ggml(info.type)
            if dequantize is None:
                raise cannot_dequantize(self.path, info)
            return dequantize(raw)
        with np.errstate(all="ignore"):  # NaN is looked for afterwards, by name
            return np.asarray(gguf.quants.dequantize(raw, info.type), dtype=np.float32)

    def sha256(self, progress: Callable[[int], object] | None = None) -> str:
        """Hash of the file, or of its parts in order; `progress` is called with the bytes of every piece."""
        return file_sha256(self.header.parts, progress)


def file_stamp(path: Path) -> list[str | int]:
    """What tells a file from another one, or from what it was, without reading it: name, size, time of change."""
    status = path.stat()
    return [str(path.absolute()), status.st_size, status.st_mtime_ns]


def file_sha256(path: Path | Sequence[Path], progress: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file, or of several one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for one in [path] if isinstance(path, Path) else path:
        with one.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
                if progress is not None:
                    progress(len(piece))
    return digest.hexdigest()


def open_source(path: str | os.PathLike[str]) -> SourceModel:
    """Open a dense GGUF model, a path or an address on the hub (gguf/hub.py).

    Raises MissingFileError when there is no such file, SourceModelError when it is a SeedΔ file or an importance
    matrix, FormatError when it is not a well-formed GGUF file or a part of it is missing; HubError as `located`.
    """
    path = located(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file; give the GGUF model to convert")
    try:
        header = read_header(path)
    except FormatError as error:
        raise FormatError(f"the source model is unreadable: {error}") from error
    if header.metadata.scalar(schema.KEY_ENABLED, bool, False):
        raise SourceModelError(f"{path}: is a SeedΔ file already; give the original model that it was made from")
    if header.metadata.scalar("general.type", str, "") == "imatrix":
        raise SourceModelError(f"{path}: is an importance matrix, not a model; give it with --imatrix")
    return SourceModel(header)


def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """True when gguf-py, or else the installed llama.cpp, knows how to turn the type into float32."""
    return _known_to_gguf(kind) or by_ggml(kind) is not None


def cannot_dequantize(path: Path, info: TensorInfo) -> SourceModelError:
    """The exception for a tensor of a type that neither of them knows."""
    return SourceModelError(
        f"{path}: tensor {info.name!r} has the type {info.type.name}, which neither gguf-py nor the installed "
        "llama.cpp can dequantize; install a newer llama-cpp-python, or start from an F16 or BF16 model"
    )


def _known_to_gguf(kind: GGMLQuantizationType) -> bool:
    floats = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
    return kind in floats or kind in gguf.quants._type_traits
