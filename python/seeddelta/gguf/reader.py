"""Open a SeedΔ file and check all that can be wrong with it before anything is computed (docs/reference/format.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFValueType

from ..errors import FormatError, SourceModelError, UnsupportedVersionError
from ..html import folded, line, table
from . import payload, schema
from .descriptions import read_descriptions
from .header import NUMPY_TYPES, Header, TensorInfo
from .model_file import MappedData, read_header
from .roles import Item, RoleSums, html_table, sums_by_role, sums_of
from .schema import TensorDescription

if TYPE_CHECKING:
    from seeddelta import _core


@dataclass(frozen=True)
class StoredTensor:
    """One converted tensor: its description and read-only views of its payload in the mapped file (no copy).

    `arrays` maps the suffix to the array in its NumPy shape; those in schema.UNSIGNED are seen so.
    """

    name: str
    description: TensorDescription
    arrays: Mapping[str, np.ndarray[Any, Any]]
    payload_bytes: int

    @property
    def base_seed(self) -> int:
        return int(self.arrays[schema.BASE_SEED][0])

    @property
    def item(self) -> Item:
        """The tensor for the sums by role."""
        return Item(self.name, self.description.weights, self.payload_bytes, self.description.norms)

    def dense_copy(self, model: Header, remedy: str) -> TensorInfo:
        """The tensor in an original model. Raises SourceModelError when it is not there or has another shape."""
        info, shape = model.tensors.get(self.name), self.description.tensor_shape
        if info is None or info.shape != shape:
            what = "is not there" if info is None else f"has the shape {list(info.shape)}, not {list(shape)}"
            raise SourceModelError(f"{model.path}: tensor {self.name!r} {what}; {remedy}")
        return info

    def to_weight(self) -> _core.Weight:
        """The tensor for computing. The arrays stay in the mapped file and are kept alive by the weight."""
        from .. import _core

        try:
            return _core.Weight(self.name, *self.description.shape, **weight_arguments(self.description, self.arrays))
        except ValueError as error:
            raise FormatError(f"{error}; the file is corrupt or of a newer release, build it again") from error


def weight_arguments(description: TensorDescription, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Keyword arguments of `_core.Weight` for a description and its payload, signed as stored or as in StoredTensor."""
    arrays = dict(arrays)
    seed = schema.as_unsigned(schema.BASE_SEED, arrays.pop(schema.BASE_SEED))
    return {
        **description.base.arguments(),
        "base_seed": int(seed[0]),
        "n_experts": description.experts or 1,
        "layout": description.layout,
        "arrays": arrays,
    }


class SeedDeltaFile:
    """An open, checked SeedΔ file. Arrays are views of the mapped file; `close` drops this object's references.

    `checksums` has the CRC-32 of every tensor in the file (payload and kept) by its name, None for a file without them.
    They are not compared with the data here; `seeddelta verify` does that.
    """

    def __init__(self, header: Header, tensors: dict[str, StoredTensor], dense: list[str], data: MappedData) -> None:
        self.path: Path = header.path
        self.header = header
        self.version: int = header.metadata[schema.KEY_VERSION]
        self.metadata: Mapping[str, Any] = header.metadata
        self.tensors = tensors
        self.dense_tensors = dense
        self.checksums = _checksums(header)
        self._data: MappedData | None = data

    def dense(self, name: str) -> np.ndarray[Any, Any]:
        """A kept tensor's array; a quantized type is seen as bytes, one flat row."""
        if self._data is None:
            raise FormatError(f"{self.path}: is closed; open it again")
        return _view(self._data, self.header, name)

    def roles(self) -> list[RoleSums]:
        """The converted tensors by role, in the order of the file."""
        return sums_by_role(tensor.item for tensor in self.tensors.values())

    def totals(self) -> list[RoleSums]:
        """What was kept, by type, and the whole model."""
        kept: dict[str, list[Item]] = {}
        for name in self.dense_tensors:
            info = self.header.tensors[name]
            kept.setdefault(info.type.name, []).append(Item(name, prod(info.shape), info.nbytes, None))
        all_kept = [item for items in kept.values() for item in items]
        converted = [replace(tensor.item, norms=None) for tensor in self.tensors.values()]
        rows = [sums_of(f"kept, {kind}", items) for kind, items in kept.items()]
        return [*rows, sums_of("whole model", [*converted, *all_kept])]

    def __repr__(self) -> str:
        size = f"{self.header.file_size / 1e6:.1f} MB"
        what = "closed" if self._data is None else f"{len(self.tensors)} converted matrices, {size}"
        return f"SeedDeltaFile({str(self.path)!r}, {what})"

    def _repr_html_(self) -> str:
        """Converted tensors by role, what was kept, and the keys."""
        shown = [
            (key, str(self.metadata[key]))
            for key in self.metadata
            if key.startswith(schema.PREFIX) and not key.startswith((schema.TENSORS, schema.KEY_CRC32))
        ]
        source = self.metadata.get(schema.KEY_SOURCE_FILE, "?")
        return (
            line(f"{self.path.name}: {len(self.tensors)} SeedΔ tensors, made from {source}")
            + html_table([*self.roles(), *self.totals()])
            + folded("keys", table((), shown, text_columns=2))
        )

    def close(self) -> None:
        self.tensors = {}
        self._data = None

    def __enter__(self) -> SeedDeltaFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _view(data: MappedData, header: Header, name: str) -> np.ndarray[Any, Any]:
    info = header.tensors[name]
    flat = data(info)
    dtype = NUMPY_TYPES.get(info.type)
    return flat if dtype is None else flat.view(dtype).reshape(info.shape)


def is_seeddelta(path: str | os.PathLike[str] | Header) -> bool:
    """True when the GGUF file is a SeedΔ file of any version (the header is read, nothing else).

    Raises FormatError when it is not a well-formed GGUF file.
    """
    header = path if isinstance(path, Header) else read_header(path)
    return header.metadata.scalar(schema.KEY_ENABLED, bool, False)


def has_statecells(path: str | os.PathLike[str] | Header) -> bool:
    """True when a codebook is the whole weight of some tensor (docs/guide/statecells.md). Only the header is read.

    Raises FormatError as `is_seeddelta` and `open_seeddelta` do.
    """
    header = path if isinstance(path, Header) else read_header(path)
    return is_seeddelta(header) and any(description.is_statecells for description in descriptions_of(header))


def descriptions_of(header: Header) -> list[TensorDescription]:
    """What is converted in a SeedΔ file. Raises FormatError, UnsupportedVersionError."""
    version = header.metadata.get(schema.KEY_VERSION)
    if not isinstance(version, int):
        raise FormatError(f"{header.path}: {schema.KEY_VERSION} is missing or no number; build the file again")
    if version != schema.VERSION:
        raise UnsupportedVersionError(
            f"{header.path}: SeedΔ version {version}; this release reads version {schema.VERSION}; "
            "install a newer seeddelta or build the file again"
        )
    return read_descriptions(header.metadata)


def open_seeddelta(path: str | os.PathLike[str] | Header, *, check_data: bool = True) -> SeedDeltaFile:
    """Map a SeedΔ file, with every shape, type, size and index range checked. Its header may have been read before.

    `check_data=False` leaves out what has to look at the payload (indices and finite scales).
    Raises FormatError, or UnsupportedVersionError for a version, kind, scheme or field that is not known; the message
    names the file, the tensor and the remedy.
    """
    header = path if isinstance(path, Header) else read_header(path)
    if not is_seeddelta(header):
        raise FormatError(f"{header.path}: a GGUF file, but not a SeedΔ file; make one with `seeddelta quantize`")
    descriptions = descriptions_of(header)
    data = MappedData(header)
    if data.size != header.file_size:
        raise FormatError(f"{header.path}: the file changed while it was opened; try again")

    tensors: dict[str, StoredTensor] = {}
    stored: set[str] = set()
    for description in descriptions:
        if description.name in tensors or description.name in header.tensors:
            raise FormatError(f"{header.path}: tensor {description.name!r} is there twice; build the file again")
        arrays = _payload(header, data, description)
        stored.update(f"{description.stem}.{suffix}" for suffix in arrays)
        tensor = StoredTensor(description.name, description, arrays, payload.payload_bytes(description))
        if check_data:
            _check_data(header, tensor)
        tensors[description.name] = tensor
    dense = [name for name in header.tensors if name not in stored]
    stray = next((name for name in dense if name.rpartition(".")[2] in schema.SUFFIXES), None)
    if stray is not None:
        raise FormatError(f"{header.path}: payload tensor {stray!r} has no description; build the file again")
    return SeedDeltaFile(header, tensors, dense, data)


def _checksums(header: Header) -> dict[str, int] | None:
    key = schema.KEY_CRC32
    if key not in header.metadata:
        return None
    values = header.metadata.array(key, GGUFValueType.UINT32)
    if len(values) != len(header.tensors):
        raise FormatError(f"{header.path}: {key} is not an array of u32, one a tensor; build the file again")
    return dict(zip(header.tensors, values, strict=True))


def _payload(header: Header, data: MappedData, description: TensorDescription) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for suffix, (shape, dtype) in payload.payload_layout(description).items():
        name = f"{description.stem}.{suffix}"
        info = header.tensors.get(name)
        if info is None:
            raise FormatError(
                f"{header.path}: tensor {description.name!r} lacks its payload {name!r}; build the file again"
            )
        if NUMPY_TYPES.get(info.type) != dtype or info.shape != shape:
            raise FormatError(
                f"{header.path}: payload {name!r} is {info.type.name}{list(info.shape)}, but its description says "
                f"{dtype.name}{list(shape)}; build the file again"
            )
        array = _view(data, header, name)
        arrays[suffix] = schema.as_unsigned(suffix, array)
    return arrays


def _check_data(header: Header, tensor: StoredTensor) -> None:
    def fail(what: str) -> FormatError:
        return FormatError(f"{header.path}: tensor {tensor.name!r}: {what}; the file is corrupt, build it again")

    for suffix in schema.FINITE:
        if suffix in tensor.arrays and not np.isfinite(tensor.arrays[suffix]).all():
            raise fail(f"{suffix} has NaN or infinite values")
    base = tensor.description.base
    if isinstance(base, schema.LanesBase) and base.fine_tiles:
        bits = np.unpackbits(tensor.arrays[schema.FINE_MAP], bitorder="little")
        tiles = -(-tensor.description.shape[0] // schema.LANES)
        if bits[tiles:].any() or bits.sum() != base.fine_tiles:
            raise fail(f"fine_map does not have {base.fine_tiles} of {tiles} tiles")
    try:
        tensor.description.residual.check_data(tensor.arrays, tensor.description.shape[1])
    except ValueError as error:
        raise fail(str(error)) from None
