"""Differences between two model files: keys, what every tensor is stored as, its bytes, and the weights themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf import schema
from ..gguf.header import Header
from ..gguf.model_file import read_header
from ..gguf.reader import SeedDeltaFile, StoredTensor, is_seeddelta, open_seeddelta
from ..gguf.roles import ratio
from ..gguf.source import SourceModel, can_dequantize
from ..numeric import row_ranges
from .summary import describe_base, describe_residual, recipe_of

# compared in parts of their own
_ELSEWHERE = (schema.TENSORS, schema.KEY_CRC32, schema.KEY_RECIPE)
_LONGEST = 80  # of a value that is shown whole


@dataclass(frozen=True)
class TensorDifference:
    """One tensor in both files. `kind_a`, `bytes_a`, `error_a` (relative error that the file states) are None where it
    is missing; a plain tensor has no error.

    `same_bytes`: stored by the same bytes and description. `rel` is ‖Ŵa − Ŵb‖ / ‖Ŵa‖ and `largest` the largest
    |Ŵa − Ŵb|; both are 0 with the same bytes, and None when they were not compared.
    """

    name: str
    kind_a: str | None
    kind_b: str | None
    bytes_a: int | None
    bytes_b: int | None
    error_a: float | None
    error_b: float | None
    same_bytes: bool
    rel: float | None
    largest: float | None


@dataclass(frozen=True)
class Difference:
    """`keys` maps a key (or `recipe.OPTION`) to its two values as text, None where it is missing; equal keys are left
    out. `tensors` has all tensors, equal ones too.
    """

    path_a: Path
    path_b: Path
    bytes_a: int
    bytes_b: int
    keys: Mapping[str, tuple[str | None, str | None]]
    tensors: tuple[TensorDifference, ...]

    @property
    def same(self) -> bool:
        """True when every key and every tensor is stored alike."""
        return not self.keys and all(tensor.same_bytes for tensor in self.tensors)

    @property
    def changed(self) -> tuple[TensorDifference, ...]:
        return tuple(tensor for tensor in self.tensors if not tensor.same_bytes)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `tensors` are those that differ."""
        return {
            "a": str(self.path_a),
            "b": str(self.path_b),
            "bytes": [self.bytes_a, self.bytes_b],
            "same": self.same,
            "keys": {key: list(values) for key, values in self.keys.items()},
            "tensors_equal": len(self.tensors) - len(self.changed),
            "tensors": [asdict(tensor) for tensor in self.changed],
        }


def diff(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, weights: bool = True, progress: bool = False
) -> Difference:
    """Compare two models, SeedΔ or plain, of one source. `weights=False` leaves out the dequantized weights.

    Raises FormatError when one of them cannot be read, SourceModelError for NaN in its weights.
    """
    from ..progress import tqdm

    with _Side(a) as first, _Side(b) as second:
        names = dict.fromkeys((*first.names, *second.names))
        tensors = []
        for name in tqdm(names, desc="diff", unit="tensor", disable=not progress):
            tensors.append(_compare(name, first, second, weights))
        sizes = (first.header.file_size, second.header.file_size)
        return Difference(Path(a), Path(b), *sizes, _keys(first.header, second.header), tuple(tensors))


class _Side:
    """One file: its tensors as they are stored, and as float32."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file: SeedDeltaFile | None = open_seeddelta(path) if is_seeddelta(path) else None
        self.header: Header = read_header(path) if self.file is None else self.file.header
        self.plain = SourceModel(self.header)
        self.converted: Mapping[str, StoredTensor] = {} if self.file is None else self.file.tensors
        kept = self.header.tensors if self.file is None else self.file.dense_tensors
        self.names = (*self.converted, *kept)

    def __enter__(self) -> _Side:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def kind(self, name: str) -> str:
        if name not in self.converted:
            return str(self.header.tensors[name].type.name)
        description = self.converted[name].description
        residual = describe_residual(description)
        return describe_base(description) + ("" if residual == "none" else f" + {residual}")

    def nbytes(self, name: str) -> int:
        return self.converted[name].payload_bytes if name in self.converted else self.header.tensors[name].nbytes

    def error(self, name: str) -> float | None:
        if name not in self.converted:
            return None
        norms = self.converted[name].description.norms
        return ratio(norms.err, norms.w)

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.converted:
            return self.converted[name].description.tensor_shape
        return self.header.tensors[name].shape

    def rows(self, name: str) -> Iterator[npt.NDArray[np.float32]]:
        """Consecutive rows in pieces that depend on the shape alone."""
        if name not in self.converted:
            yield from self.plain.chunks(name)
            return
        weight, last = self.converted[name].to_weight(), self.converted[name].description.rows
        for begin, end in row_ranges(last, self.shape(name)[-1]):
            yield weight.dequantize(begin, end)

    def same_bytes(self, name: str, other: _Side) -> bool:
        if (name in self.converted) != (name in other.converted):
            return False
        if name not in self.converted:
            mine, theirs = self.header.tensors[name], other.header.tensors[name]
            alike = (mine.type, mine.shape) == (theirs.type, theirs.shape)
            return alike and np.array_equal(self.plain.raw(name), other.plain.raw(name))
        one, two = self.converted[name], other.converted[name]
        return one.description == two.description and all(
            np.array_equal(array.view(np.uint8), two.arrays[suffix].view(np.uint8))
            for suffix, array in one.arrays.items()
        )


def _compare(name: str, a: _Side, b: _Side, weights: bool) -> TensorDifference:
    there = [name in side.names for side in (a, b)]
    same = all(there) and a.same_bytes(name, b)
    rel, largest = (0.0, 0.0) if same else (None, None)
    if all(there) and weights and not same and a.shape(name) == b.shape(name) and _have_weights(name, a, b):
        rel, largest = _distance(name, a, b)
    one, two = (side if found else None for side, found in zip((a, b), there, strict=True))
    return TensorDifference(
        name=name,
        kind_a=None if one is None else one.kind(name),
        kind_b=None if two is None else two.kind(name),
        bytes_a=None if one is None else one.nbytes(name),
        bytes_b=None if two is None else two.nbytes(name),
        error_a=None if one is None else one.error(name),
        error_b=None if two is None else two.error(name),
        same_bytes=same,
        rel=rel,
        largest=largest,
    )


def _have_weights(name: str, *sides: _Side) -> bool:
    return all(name in side.converted or can_dequantize(side.header.tensors[name].type) for side in sides)


def _distance(name: str, a: _Side, b: _Side) -> tuple[float, float]:
    error = norm = largest = 0.0
    for one, two in zip(a.rows(name), b.rows(name), strict=True):
        gap = one - two
        norm += float(np.einsum("oi,oi->", one, one, dtype=np.float64))
        error += float(np.einsum("oi,oi->", gap, gap, dtype=np.float64))
        largest = max(largest, float(np.abs(gap).max()))
    return ratio(sqrt(error), sqrt(norm)) if norm else float(error > 0), largest


def _keys(a: Header, b: Header) -> dict[str, tuple[str | None, str | None]]:
    found: dict[str, tuple[str | None, str | None]] = {}
    for key in dict.fromkeys((*a.metadata, *b.metadata)):
        raw = [side.metadata.raw(key) if key in side.metadata else None for side in (a, b)]
        if raw[0] != raw[1] and not key.startswith(_ELSEWHERE):
            one, two = (_text(side, key) if key in side.metadata else None for side in (a, b))
            found[key] = (one, two)
    recipes = [recipe_of(side.metadata) for side in (a, b)]
    for option in dict.fromkeys((*recipes[0], *recipes[1])):
        values = [str(recipe[option]) if option in recipe else None for recipe in recipes]
        if values[0] != values[1]:
            found[f"recipe.{option}"] = (values[0], values[1])
    return found


def _text(header: Header, key: str) -> str:
    value = header.metadata[key]
    if isinstance(value, (list, np.ndarray)):
        return f"{len(value)} items"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
