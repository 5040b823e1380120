"""Split models: parts NAME-00001-of-0000N.gguf with keys `split.*`, as llama-gguf-split makes them.

The first part has all metadata; each has a tensor table and the data of its own tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFValueType

from .._output import SPLIT_NAME, atomic_output, check_writable, names_of_parts
from ..errors import FormatError
from .header import KEY_ALIGNMENT, Header, TensorInfo
from .writer import PlannedTensor, Typed, Value, write_into

if TYPE_CHECKING:
    from .. import _core

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
Chunks = Callable[[PlannedTensor], Iterable[np.ndarray[Any, Any]]]


def part_path(path: Path, number: int, count: int) -> Path:
    """Path of part `number` (from 0) of a model that would be `path` in one file."""
    return path.with_name(f"{path.name.removesuffix('.gguf')}-{number + 1:05d}-of-{count:05d}.gguf")


def is_part(header: Header) -> bool:
    """True for a header of one of several parts."""
    return header.metadata.scalar(_COUNT, int, 1) > 1


def join(one: Header, read_one: Callable[[Path], Header]) -> Header:
    """Header of a whole model from that of any part. Raises FormatError for a part that is missing or of another."""
    count = one.metadata.scalar(_COUNT, int, 1)
    match = SPLIT_NAME.fullmatch(one.path.name)
    if match is None or int(match[3]) != count:
        raise FormatError(
            f"{one.path}: is one of {count} parts of a model but is not named NAME-00001-of-{count:05d}.gguf; "
            "give all parts the names that they had"
        )
    paths = [one.path.with_name(name) for name in names_of_parts(one.path.name)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise FormatError(
            f"{one.path}: {', '.join(missing)} of the same model is missing; put all parts into one folder"
        )
    parts = [one if path == one.path else read_one(path) for path in paths]
    whole = parts[0]
    for number, part in enumerate(parts):
        if (part.metadata.scalar(_COUNT, int, 1), part.metadata.scalar(_NUMBER, int, 0)) != (count, number):
            raise FormatError(f"{part.path}: is not part {number + 1} of {count}; download the model again")
        twice = sorted(whole.tensors.keys() & part.tensors.keys()) if number else []
        if twice:
            raise FormatError(f"{part.path}: tensor {twice[0]!r} is in another part, too; download the model again")
        whole.tensors |= part.tensors
    total = whole.metadata.scalar(_TENSORS, int, len(whole.tensors))
    if total != len(whole.tensors):
        raise FormatError(f"{whole.path}: the parts have {len(whole.tensors)} tensors of {total}; download them again")
    whole.parts = paths
    whole.file_size = sum(part.file_size for part in parts)
    whole.metadata.forget("split.")
    return whole


class MappedData:
    """Bytes of the tensors of a header, of one file or of several, which stay mapped.

    With `watch` `guards` has what notices, by file, that one is changed or made shorter meanwhile. Pages that are gone
    are zeros then and no longer end the process, so whoever watches has to ask.
    """

    def __init__(self, header: Header, *, watch: bool = False) -> None:
        self._maps: dict[Path, np.ndarray[Any, Any]] = {}
        self.guards: dict[Path, _core.FileGuard] = {}
        for part in header.parts:
            with part.open("rb") as file:
                self._maps[part] = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
                if watch:
                    from .. import _core

                    self.guards[part] = _core.FileGuard(file.fileno(), self._maps[part])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(data.size for data in self._maps.values())

    def __call__(self, info: TensorInfo) -> np.ndarray[Any, Any]:
        """uint8[nbytes], a view."""
        return self._maps[info.path][info.offset : info.offset + info.nbytes]


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
                own[_NUMBER] = Typed(number, GGUFValueType.UINT16)
                own[_COUNT] = Typed(len(parts), GGUFValueType.UINT16)
                own[_TENSORS] = Typed(len(tensors), GGUFValueType.INT32)
            size += write_into(temporary[number], own, part, chunks)
    return paths, size
