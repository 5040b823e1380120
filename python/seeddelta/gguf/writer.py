"""Write a GGUF file: tensor after tensor, in pieces, into a temporary file that takes the name at the very end."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ..storage.output import atomic_output, check_writable
from .header import (
    DEFAULT_ALIGNMENT,
    KEY_ALIGNMENT,
    NUMPY_TYPES,
    SPLIT_COUNT,
    SPLIT_NUMBER,
    SPLIT_TENSORS,
    Header,
)

TYPE_OF_DTYPE = {dtype: GGMLQuantizationType(kind) for kind, dtype in NUMPY_TYPES.items()}


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes (type word first), copied from another file."""

    data: bytes


@dataclass(frozen=True)
class Typed:
    """A metadata value to be packed; `item` is the type of an array's elements."""

    value: Any
    type: GGUFValueType
    item: GGUFValueType | None = None


Value = Raw | Typed


@dataclass(frozen=True)
class PlannedTensor:
    """Name, NumPy shape in elements, and type of a tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType

    @property
    def nbytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return int(prod(self.shape) // block * size)


Chunks = Callable[[PlannedTensor], Iterable[np.ndarray[Any, Any]]]


class _Writer(gguf.GGUFWriter):  # type: ignore[misc]
    """gguf-py's writer that also takes values copied verbatim (it cannot write empty arrays by itself)."""

    def _pack_val(self, val: Any, *args: Any, **kwargs: Any) -> bytes:
        if isinstance(val, Raw):
            return val.data
        if isinstance(val, str):  # the name of a file may be bytes that are no UTF-8
            val = val.encode("utf-8", "replace")
        return bytes(super()._pack_val(val, *args, **kwargs))


def copied_metadata(header: Header, without: str | None = None) -> dict[str, Value]:
    """All values of a header, verbatim, except the keys that begin with `without`."""
    keys = (key for key in header.metadata if without is None or not key.startswith(without))
    return {key: Raw(header.metadata.raw(key)) for key in keys}


def crc32(chunks: Iterable[np.ndarray[Any, Any]]) -> int:
    """CRC-32 (that of zlib and PNG) of the bytes of consecutive arrays."""
    value = 0
    for chunk in chunks:
        value = zlib.crc32(_bytes_of(chunk), value)
    return value


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    chunks: Chunks,
) -> int:
    """Write a GGUF file atomically and return its size in bytes.

    `chunks(tensor)` yields the tensor's data in order, as arrays of any shape that together have `tensor.nbytes` bytes.
    Tensors begin at multiples of `general.alignment` in `metadata`. An exception, whether from `chunks` or from the
    disk, leaves no file behind and an existing file as it was. Raises OutputError when the file cannot be written.
    """
    with atomic_output(path) as temporary:
        return write_into(temporary, metadata, tensors, chunks)


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get(KEY_ALIGNMENT)
    if isinstance(value, Raw):
        _type, alignment = struct.unpack("<II", value.data)  # a reader has checked that it is a u32
        return int(alignment)
    return DEFAULT_ALIGNMENT if value is None else int(value.value)


def write_into(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    chunks: Chunks,
) -> int:
    """The same without a temporary file."""
    writer = _Writer(path, "")
    writer.data_alignment = _alignment(metadata)
    try:
        for key, value in metadata.items():
            if isinstance(value, Raw):
                writer.add_key_value(key, value, GGUFValueType.STRING)
            else:
                writer.add_key_value(key, value.value, value.type, value.item)
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        (file,) = writer.fout
        writer.write_padding(file, file.tell())
        for tensor in tensors:
            written = 0
            for chunk in chunks(tensor):
                file.write(_bytes_of(chunk))
                written += chunk.nbytes
            if written != tensor.nbytes:
                raise RuntimeError(f"tensor {tensor.name!r}: {written} bytes given, {tensor.nbytes} planned")
            writer.write_padding(file, written)
        file.flush()
        os.fsync(file.fileno())
        return int(file.tell())
    finally:
        with contextlib.suppress(OSError):  # a full disk: the first error is the one to tell
            writer.close()


def part_path(path: Path, number: int, count: int) -> Path:
    """Path of part `number` (from 0) of a model that would be `path` in one file."""
    return path.with_name(f"{path.name.removesuffix('.gguf')}-{number + 1:05d}-of-{count:05d}.gguf")


def pack(tensors: Sequence[PlannedTensor], limit: int) -> list[list[PlannedTensor]]:
    """Tensors in order, in parts with at most `limit` bytes of data each; a larger tensor has a part of its own."""
    parts: list[list[PlannedTensor]] = [[]]
    used = 0
    for tensor in tensors:
        if parts[-1] and used + tensor.nbytes > limit:
            parts.append([])
            used = 0
        parts[-1].append(tensor)
        used += tensor.nbytes
    return parts


def write_split(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    chunks: Chunks,
    limit: int,
) -> tuple[list[Path], int]:
    """Write a model in parts of at most `limit` bytes of data; one that fits is one file, `path`. Returns the files and
    their bytes. No part is there before all are complete. Raises as `write_gguf`.
    """
    parts = pack(tensors, limit)
    paths = [part_path(path, number, len(parts)) for number in range(len(parts))] if len(parts) > 1 else [path]
    size = 0
    with ExitStack() as stack:
        for one in paths:
            check_writable(one)
        temporary = [stack.enter_context(atomic_output(one)) for one in paths]
        for number, part in enumerate(parts):
            own: dict[str, Value] = dict(metadata) if number == 0 else {}
            if len(parts) > 1:
                if KEY_ALIGNMENT in metadata:
                    own[KEY_ALIGNMENT] = metadata[KEY_ALIGNMENT]
                own[SPLIT_NUMBER] = Typed(number, GGUFValueType.UINT16)
                own[SPLIT_COUNT] = Typed(len(parts), GGUFValueType.UINT16)
                own[SPLIT_TENSORS] = Typed(len(tensors), GGUFValueType.INT32)
            size += write_into(temporary[number], own, part, chunks)
    return paths, size
