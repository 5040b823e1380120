"""A model as it is given: a file, any part of a split model, or an address on the hub; and its mapped bytes.

The first part of a split model has all metadata; each has a tensor table and the data of its own tensors.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import FormatError
from ..storage.output import SPLIT_NAME, names_of_parts
from .header import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS, Header, TensorInfo, read_file
from .hub import located


def read_header(path: str | os.PathLike[str]) -> Header:
    """Header of a model: of a GGUF file, of all parts of a split one, of which any is given, or of one on the hub.

    Raises FormatError as `header.read_file`, and for parts that are missing or belong to other models.
    """
    header = read_file(located(path))
    return join(header) if is_part(header) else header


def is_part(header: Header) -> bool:
    """True for a header of one of several parts."""
    return header.metadata.scalar(SPLIT_COUNT, int, 1) > 1


def join(one: Header) -> Header:
    """Header of a whole model from that of any part. Raises FormatError for a part that is missing or of another."""
    count = one.metadata.scalar(SPLIT_COUNT, int, 1)
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
    parts = [one if path == one.path else read_file(path) for path in paths]
    whole = parts[0]
    for number, part in enumerate(parts):
        if (part.metadata.scalar(SPLIT_COUNT, int, 1), part.metadata.scalar(SPLIT_NUMBER, int, 0)) != (count, number):
            raise FormatError(f"{part.path}: is not part {number + 1} of {count}; download the model again")
        twice = sorted(whole.tensors.keys() & part.tensors.keys()) if number else []
        if twice:
            raise FormatError(f"{part.path}: tensor {twice[0]!r} is in another part, too; download the model again")
        whole.tensors |= part.tensors
    total = whole.metadata.scalar(SPLIT_TENSORS, int, len(whole.tensors))
    if total != len(whole.tensors):
        raise FormatError(f"{whole.path}: the parts have {len(whole.tensors)} tensors of {total}; download them again")
    whole.parts = paths
    whole.file_size = sum(part.file_size for part in parts)
    whole.metadata.forget("split.")
    return whole


class MappedData:
    """Bytes of the tensors of a header, of one file or of several, which stay mapped."""

    def __init__(self, header: Header) -> None:
        self._maps = {part: np.asarray(np.memmap(part, dtype=np.uint8, mode="r")) for part in header.parts}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(data.size for data in self._maps.values())

    def __call__(self, info: TensorInfo) -> np.ndarray[Any, Any]:
        """uint8[nbytes], a view."""
        return self._maps[info.path][info.offset : info.offset + info.nbytes]
