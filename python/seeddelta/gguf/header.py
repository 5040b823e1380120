"""Bounded parser of a GGUF header.

gguf-py's reader believes the file: counts, lengths and offsets are used before they are checked, a numeric array costs
hundreds of bytes an element, and 49k tokens take 160 MB. This parser checks every number against the size of the file
before it is used, keeps arrays where they are until somebody asks for them, and looks at no tensor data. Constants,
quantized types and writing stay gguf-py's job. Layout of the header: ggml/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import builtins
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import FormatError, MissingFileError

_T = TypeVar("_T", str, bool, int, float)
KEY_ALIGNMENT = "general.alignment"
SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_NAME = 127  # bytes: llama.cpp takes 63 (gguf/source.py), files of measurements have endings behind such names
MAX_ELEMENTS = 1 << 48  # far beyond any model, far below overflow of the products

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


@dataclass(frozen=True)
class _Value:
    begin: int  # of the type word
    end: int
    type: int


class Header:
    """Checked header of a GGUF file: `.metadata`, `.tensors` in file order, `.alignment`, `.data_offset`.

    Of a split model it is that of all `parts`: `path` is the first of them, `file_size` the sum, the keys `split.*` are
    left out.
    """

    def __init__(self, path: Path, version: int, values: dict[str, _Value], tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.parts = [path]
        self.version = version
        self.tensors = tensors
        self.metadata = Metadata(path, values)
        self.alignment = DEFAULT_ALIGNMENT
        self.data_offset = 0
        self.file_size = 0


class Metadata(Mapping[str, Any]):
    """Key/value pairs of a header. Values are decoded when asked for; numeric arrays are NumPy arrays."""

    def __init__(self, path: Path, values: dict[str, _Value]) -> None:
        self.path = path
        self._values = values
        self._raw: dict[str, bytes] = {}

    def raw(self, key: str) -> bytes:
        """Bytes of a value as they are in the file: the type word, then the value."""
        return self._raw[key]

    def type(self, key: str) -> GGUFValueType:
        return GGUFValueType(self._values[key].type)

    def scalar(self, key: str, kind: builtins.type[_T], default: _T) -> _T:
        """A string, bool, int or float; the default where there is no such key. Raises FormatError for another type."""
        if key not in self._values:
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

    def forget(self, prefix: str) -> None:
        """Drop all keys that begin with a prefix."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            del self._values[key], self._raw[key]

    def __getitem__(self, key: str) -> Any:
        return _decode(self._raw[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


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


_LENGTH = struct.Struct("<Q")


class _Cursor:
    """Reads numbers and strings of the header and refuses to leave the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what} (at byte {self.at}); the file is corrupt or truncated, make it again")

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.fail(f"the file ends inside {what}")

    def number(self, code: str, what: str) -> Any:
        size = struct.calcsize(code)
        self.need(size, what)
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += size
        return value

    def skip_string(self, what: str) -> tuple[int, int]:
        length = self.number("<Q", what)
        self.need(length, what)
        self.at += length
        return self.at - length, self.at

    def skip_strings(self, count: int, what: str) -> None:
        """As skip_string so many times; vocabularies have 10^5 entries, so nothing is called for each."""
        length_of, data, at, size = _LENGTH.unpack_from, self.data, self.at, self.size
        try:
            for _ in range(count):
                at += 8 + length_of(data, at)[0]
                if at > size:
                    break
        except struct.error:  # no room for a length
            at = size + 1
        if at > size:
            raise self.fail(f"the file ends inside {what}")
        self.at = at

    def string(self, what: str) -> str:
        begin, end = self.skip_string(what)
        try:
            return self.data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8") from error

    def skip_value(self, key: str) -> _Value:
        begin = self.at
        kind = self.number("<I", f"the value of {key}")
        what = f"the value of {key}"
        if kind == GGUFValueType.STRING:
            self.string(what)
        elif kind == GGUFValueType.ARRAY:
            item, count = self.number("<I", what), self.number("<Q", what)
            if item == GGUFValueType.STRING:
                self.need(8 * count, what)
                self.skip_strings(count, what)
            elif item in _SCALARS:
                self.need(count * struct.calcsize(_SCALARS[item][0]), what)
                self.at += count * struct.calcsize(_SCALARS[item][0])
            else:
                raise self.fail(f"{what} is an array of unknown type {item}")
        elif kind in _SCALARS:
            self.number(_SCALARS[kind][0], what)
        else:
            raise self.fail(f"{what} has the unknown type {kind}")
        return _Value(begin, self.at, kind)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string("a tensor name")
        if not 0 < len(name.encode()) <= MAX_NAME or not name.isprintable():
            raise self.fail(f"the tensor name {name[: MAX_NAME + 1]!r} is not 1 to {MAX_NAME} bytes of printable text")
        what = f"the description of tensor {name!r}"
        n_dims = self.number("<I", what)
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.fail(f"tensor {name!r} has {n_dims} dimensions")
        dims = [self.number("<Q", what) for _ in range(n_dims)]
        return name, tuple(reversed(dims)), self.number("<I", what), self.number("<Q", what)


def read_file(path: Path) -> Header:
    """Parse and check the header of one GGUF file. Tensor data is not touched.

    Raises FormatError for anything that is not a well-formed little-endian GGUF of version 2 or 3 whose tensors lie
    inside the file, aligned and without overlap; the message names the file and the tensor or key.
    MissingFileError when there is none.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise FormatError(f"{path}: too short to be a GGUF file; it is truncated, make it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error


def _parse(path: Path, data: mmap.mmap) -> Header:
    cursor = _Cursor(path, data)
    if data[:4] != b"GGUF":
        raise FormatError(f"{path}: not a GGUF file (magic {bytes(data[:4])!r}); give a .gguf model")
    cursor.at = 4
    version = cursor.number("<I", "the version")
    if version & 0xFFFF == 0:
        raise FormatError(f"{path}: a big-endian GGUF; convert it with gguf-convert-endian")
    if version not in (2, 3):
        raise FormatError(f"{path}: GGUF version {version} is not known (2 and 3 are); convert the model again")
    n_tensors, n_values = cursor.number("<Q", "the counts"), cursor.number("<Q", "the counts")
    cursor.need(13 * n_values + 28 * n_tensors, "the header (impossible counts)")  # the least that each can take

    values: dict[str, _Value] = {}
    header = Header(path, version, values, {})
    for _ in range(n_values):
        key = cursor.string("a key")
        if key in values:
            raise cursor.fail(f"the key {key!r} occurs twice")
        values[key] = value = cursor.skip_value(key)
        header.metadata._raw[key] = data[value.begin : value.end]
    if KEY_ALIGNMENT in values:
        header.alignment = header.metadata[KEY_ALIGNMENT]
        if values[KEY_ALIGNMENT].type != GGUFValueType.UINT32 or header.alignment.bit_count() != 1:
            raise cursor.fail(f"general.alignment is {header.alignment!r}, not a power of two in a u32")

    table = [cursor.tensor() for _ in range(n_tensors)]
    header.file_size = len(data)
    header.data_offset = -(-cursor.at // header.alignment) * header.alignment
    for name, shape, kind, offset in table:
        if name in header.tensors:
            raise FormatError(f"{path}: tensor {name!r} occurs twice; make the file again")
        header.tensors[name] = _check_tensor(header, name, shape, kind, offset)
    _check_overlap(header)
    return header


def _check_tensor(header: Header, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    def fail(what: str) -> FormatError:
        return FormatError(f"{header.path}: tensor {name!r} {what}; the file is corrupt or truncated, make it again")

    try:
        quant = GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[quant]
    except (ValueError, KeyError):
        raise FormatError(
            f"{header.path}: tensor {name!r} has the unknown type {kind}; the file is corrupt, or it is of a newer "
            "llama.cpp: pip install -U gguf"
        ) from None
    if min(shape) < 1 or max(shape) > MAX_ELEMENTS or prod(shape) > MAX_ELEMENTS:
        raise fail(f"has the impossible shape {shape}")
    if shape[-1] % block:
        raise fail(f"has {shape[-1]} columns, not a multiple of the block of {quant.name}")
    nbytes = prod(shape) // block * size
    if offset % header.alignment:
        raise fail(f"starts at {offset}, which is not a multiple of {header.alignment}")
    begin = header.data_offset + offset
    if begin + nbytes > header.file_size:
        raise fail(f"ends at byte {begin + nbytes} of a file of {header.file_size} bytes")
    return TensorInfo(name, shape, quant, begin, nbytes, header.path)


def _check_overlap(header: Header) -> None:
    end, previous = 0, ""
    for tensor in sorted(header.tensors.values(), key=lambda t: t.offset):
        if tensor.offset < end:
            raise FormatError(f"{header.path}: tensors {previous!r} and {tensor.name!r} overlap; make the file again")
        end, previous = tensor.offset + tensor.nbytes, tensor.name
