"""The gradient file: a GGUF with G = E[g gᵀ / ‖g‖] of matrices, g the gradients of the loss at a matrix' outputs.

Keys `general.type` = "seeddelta.gradient", `seeddelta.gradient.version` = 1, `.tokens`, `.chunks`, `.ctx`, `.seed`,
`.model`, `.text`, `.text_sha256`. Tensors `<matrix>.grad` F32 [n_out, n_out], symmetric, the mean of the diagonal 1,
and, if prices were measured, `<matrix>.price` F32 [1] (convert/prices.py), of embedding and output matrix, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import FormatError, ImatrixError
from ..gguf.header import Header
from ..gguf.model_file import read_header
from ..gguf.source import file_sha256
from ..gguf.writer import PlannedTensor, Typed, Value, write_gguf
from .text import Windows

F32 = npt.NDArray[np.float32]
TYPE = "seeddelta.gradient"
VERSION = 1
SUFFIX = ".grad"
PRICE = ".price"
_REMEDY = "make it again with seeddelta imatrix --gradient"


class Gradient:
    """An open gradient file. Matrices are read when asked for; a context manager is not needed."""

    def __init__(self, header: Header) -> None:
        self.path = Path(header.path)
        self._header = header

    @property
    def tensors(self) -> tuple[str, ...]:
        """Matrices whose gradients are known."""
        return tuple(name.removesuffix(SUFFIX) for name in self._header.tensors if name.endswith(SUFFIX))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file, hex."""
        return file_sha256(self.path)

    def has(self, name: str) -> bool:
        """True when the gradients of a matrix are known, and are not zero in every token."""
        return name + SUFFIX in self._header.tensors and bool(np.diagonal(self._view(name)).any())

    def _view(self, name: str) -> F32:
        info = self._header.tensors[name + SUFFIX]
        try:
            return np.asarray(np.memmap(self.path, "<f4", "r", info.offset, info.shape))
        except (OSError, ValueError) as error:
            raise ImatrixError(f"{self.path}: the gradients of {name!r} cannot be read ({error}); {_REMEDY}") from error

    def matrix(self, name: str) -> F32:
        """G of a matrix, float32 [n_out, n_out], symmetric: a read-only view of the file.

        Raises ImatrixError where there is none, and for values that no covariance has.
        """
        if name + SUFFIX not in self._header.tensors:
            raise ImatrixError(f"{self.path}: no gradients of {name!r}; {_REMEDY}")
        values = self._view(name)
        diagonal = np.diagonal(values)
        if not np.isfinite(values).all() or (diagonal < 0).any():
            raise ImatrixError(f"{self.path}: the gradients of {name!r} are not finite or not positive; {_REMEDY}")
        return values

    def price(self, name: str) -> float | None:
        """What errors of a matrix cost the model in nats per unit of the encoder's error; None when it is not known.

        Raises ImatrixError for a value that no price has.
        """
        info = self._header.tensors.get(name + PRICE)
        if info is None:
            return None
        value = float(np.memmap(self.path, "<f4", "r", info.offset, (1,))[0])
        if not 0 <= value < float("inf"):
            raise ImatrixError(f"{self.path}: the price of {name!r} is {value}; {_REMEDY}")
        return value


def open_gradient(path: str | os.PathLike[str]) -> Gradient:
    """Open and check a gradient file. Raises ImatrixError naming the file, the tensor and the remedy."""
    path = Path(path)
    try:
        header = read_header(path)
        if header.metadata.scalar("general.type", str, "") != TYPE:
            raise ImatrixError(f"{path}: not a gradient file; {_REMEDY}")
        if header.metadata.scalar(f"{TYPE}.version", int, 0) != VERSION:
            raise ImatrixError(f"{path}: a gradient file of an unknown version; update seeddelta or {_REMEDY}")
    except OSError as error:
        raise ImatrixError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (FormatError, KeyError, ValueError, TypeError) as error:
        raise ImatrixError(f"{path}: not a whole gradient file ({error}); {_REMEDY}") from error
    for name, info in header.tensors.items():
        square = name.endswith(SUFFIX) and len(info.shape) == 2 and len(set(info.shape)) == 1
        price = name.endswith(PRICE) and info.shape == (1,)
        if info.type != GGMLQuantizationType.F32 or not (square or price):
            raise ImatrixError(f"{path}: {name!r} is no square F32 matrix of gradients, nor a price; {_REMEDY}")
    return Gradient(header)


def write_gradient(
    path: str | os.PathLike[str],
    rows: Mapping[str, int],
    matrix: Callable[[str], F32],
    prices: Mapping[str, float] | None,
    others: Iterable[str],
    *,
    model_name: str,
    windows: Windows,
    seed: int,
) -> None:
    """Write G of matrices with so many `rows`; `matrix` is asked for each in turn. Raises OutputError.

    With `prices`, which are asked for after all matrices, those of `rows` and of the `others` are written, too.
    """

    def number(value: int) -> Value:
        return Typed(value, GGUFValueType.UINT64)

    metadata: dict[str, Value] = {
        "general.type": Typed(TYPE, GGUFValueType.STRING),
        f"{TYPE}.version": Typed(VERSION, GGUFValueType.UINT32),
        f"{TYPE}.tokens": number(windows.chunks * windows.ctx),
        f"{TYPE}.chunks": number(windows.chunks),
        f"{TYPE}.ctx": number(windows.ctx),
        f"{TYPE}.seed": number(seed),
        f"{TYPE}.model": Typed(model_name, GGUFValueType.STRING),
        f"{TYPE}.text": Typed(windows.name, GGUFValueType.STRING),
        f"{TYPE}.text_sha256": Typed(windows.sha256, GGUFValueType.STRING),
    }
    plan = [PlannedTensor(name + SUFFIX, (n_out, n_out), GGMLQuantizationType.F32) for name, n_out in rows.items()]
    if prices is not None:
        plan += [PlannedTensor(name + PRICE, (1,), GGMLQuantizationType.F32) for name in (*rows, *others)]

    def pieces(tensor: PlannedTensor) -> Iterable[F32]:
        if tensor.name.endswith(PRICE):
            assert prices is not None
            yield np.array([prices[tensor.name.removesuffix(PRICE)]], "<f4")
            return
        yield np.ascontiguousarray(matrix(tensor.name.removesuffix(SUFFIX)), "<f4")

    write_gguf(Path(path), metadata, plan, pieces)
