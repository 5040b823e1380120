"""A model as it is given: a file, any part of a split model, or an address on the hub; and its mapped bytes.

The first part of a split model has all metadata; each has a tensor table and the data of its own tensors.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .header import Header, TensorInfo
from .hub import located


def read_header(path: str | os.PathLike[str]) -> Header:
    """Header of a model: of a GGUF file, of all parts of a split one, of which any is given, or of one on the hub.

    Raises as `Header`.
    """
    return Header(located(path))


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
