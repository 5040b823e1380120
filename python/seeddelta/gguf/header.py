"""The header of a GGUF model: metadata that are decoded when they are asked for, and where each tensor lies.

gguf-py's reader believes the file, a numeric array costs hundreds of bytes an element in it, and 49k tokens take
160 MB. Constants, quantized types and writing stay gguf-py's job.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from seeddelta import _core

from ..errors import FormatError, MissingFileError

_T = TypeVar("_T", str, bool, int, float)
KEY_ALIGNMENT = "general.alignment"
SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
DEFAULT_ALIGNMENT = 32

_SCALARS: dict[int, tuple[str, str]] = {  # GGUF value type -> (struct, NumPy)
    GGUFValueType.UINT8: ("<B", "u1"),
    GGUFValueType.INT8: ("<b", "i1"),
    GGUFValueType.UINT16: ("<H", "<u2"),
    GGUFValueType.INT16: ("<h", "<i2"),
    GGUFValueType.UINT32: ("<I", "<u4"),
    GGUFValueType.INT32: ("<i", "<i4"),
    GGUFValueType.FLOAT32: ("<f", "<f4"),
    GGUFValueType.BOOL: ("<?", "?"),
    GGUFValueType.UINT64: ("<Q", "<u8"),
    GGUFValueType.INT64: ("<q", "<i8"),
    GGUFValueType.FLOAT64: ("<d", "<f8"),
}
# element of an unquantized tensor; everything else is seen as bytes
NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
    GGMLQuantizationType.I8: np.dtype("i1"),
    GGMLQuantizationType.I16: np.dtype("<i2"),
    GGMLQuantizationType.I32: np.dtype("<i4"),
    GGMLQuantizationType.I64: np.dtype("<i8"),
}


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor table. `shape` is NumPy's order (rows first), `offset` is from the start of `path`."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int
    path: Path


class Header:
    """Checked header of a GGUF file: `.metadata`, `.tensors` in file order, `.alignment`, `.data_offset`.

    Of a split model it is that of all `parts`: `path` is the first of them, `file_size` the sum, the keys `split.*` are
    left out. The extension reads it (cpp/src/gguf/header.hpp) and compares every number with the size of the file
    before it is used; tensor data is not touched. Raises FormatError naming the file and the tensor or key for anything
    that is not a well-formed little-endian GGUF of version 2 or 3 whose tensors lie inside the file, aligned and
    without overlap, and for parts that are missing or of other models; MissingFileError when there is no file.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise MissingFileError(f"{path}: no such file; check the path")
        files, self.alignment, self.data_offset, values, tensors = _core.read_header(path)
        self.parts: list[Path] = [part for part, _ in files]
        self.path = self.parts[0]
        self.file_size: int = sum(size for _, size in files)
        self.metadata = Metadata(self.path, values)
        self.tensors: dict[str, TensorInfo] = {
            name: TensorInfo(name, shape, self._type(name, kind), offset, nbytes, self.parts[part])
            for name, shape, kind, offset, nbytes, part in tensors
        }

    def _type(self, name: str, kind: int) -> GGMLQuantizationType:
        if not name.isprintable():  # the extension looks for control characters of ASCII
            raise FormatError(f"{self.path}: the tensor name {name!r} is no printable text; make the file again")
        try:
            return GGMLQuantizationType(kind)
        except ValueError:
            raise FormatError(
                f"{self.path}: tensor {name!r} has the type {kind}, which the installed gguf does not know: "
                "pip install -U gguf"
            ) from None


class Metadata(Mapping[str, Any]):
    """Key/value pairs of a header. Values are decoded when asked for; numeric arrays are NumPy arrays."""

    def __init__(self, path: Path, values: dict[str, bytes]) -> None:
        self.path = path
        self._raw = values

    def raw(self, key: str) -> bytes:
        """Bytes of a value as they are in the file: the type word, then the value."""
        return self._raw[key]

    def type(self, key: str) -> GGUFValueType:
        return GGUFValueType(struct.unpack_from("<I", self._raw[key])[0])

    def scalar(self, key: str, kind: builtins.type[_T], default: _T) -> _T:
        """A string, bool, int or float; the default where there is no such key. Raises FormatError for another type."""
        if key not in self._raw:
            return default
        value: _T = self[key]
        if type(value) is not kind:
            raise FormatError(f"{self.path}: the key {key} is no {kind.__name__}; the file is corrupt, make it again")
        return value

    def array(self, key: str, item: GGUFValueType) -> list[Any]:
        """Elements of an array as Python values. Raises FormatError for a value that is no array of such elements."""
        raw = self._raw[key]
        if self.type(key) != GGUFValueType.ARRAY or struct.unpack_from("<I", raw, 4)[0] != item:
            raise FormatError(
                f"{self.path}: the key {key} is no array of {item.name.lower()}; the file is corrupt, build it again"
            )
        values = _decode(raw)
        return values.tolist() if isinstance(values, np.ndarray) else list(values)

    def __getitem__(self, key: str) -> Any:
        return _decode(self._raw[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def _decode(raw: bytes) -> Any:
    """Value of checked bytes (type word first)."""
    kind = struct.unpack_from("<I", raw)[0]
    if kind == GGUFValueType.STRING:
        return raw[12:].decode()
    if kind != GGUFValueType.ARRAY:
        return struct.unpack_from(_SCALARS[kind][0], raw, 4)[0]
    item, count = struct.unpack_from("<IQ", raw, 4)
    if item != GGUFValueType.STRING:
        return np.frombuffer(raw, dtype=_SCALARS[item][1], count=count, offset=16)
    strings, at = [], 16
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", raw, at)
        strings.append(raw[at + 8 : at + 8 + length].decode(errors="replace"))  # tokens need not be whole characters
        at += 8 + length
    return strings
