"""The table of converted tensors of a SeedΔ file: typed arrays with an entry a tensor (docs/reference/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan, nan
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType
from pydantic import BaseModel, ValidationError

from ..errors import FormatError, UnsupportedVersionError
from .header import Metadata
from .schema import BASES, RESIDUALS, TENSORS, Norms, TensorDescription
from .writer import Typed, Value

_U8, _U32, _U64 = GGUFValueType.UINT8, GGUFValueType.UINT32, GGUFValueType.UINT64
_F32, _F64 = GGUFValueType.FLOAT32, GGUFValueType.FLOAT64
_BOOL, _STRING = GGUFValueType.BOOL, GGUFValueType.STRING
_BROKEN = "the file is corrupt, build it again"
_NEWER = "install a newer seeddelta"
_NEWER_TYPE = f"{_BROKEN}, or its original model has a type of a newer ggml: pip install -U gguf"


@dataclass(frozen=True)
class Column:
    """One array. Its values are a description's `part.field`; of several fields a base or residual has one at most.

    `words` are what its numbers stand for, `remedy` what to do about another number. An array that is not required may
    be absent, which means `absent` for every tensor.
    """

    name: str
    type: GGUFValueType
    part: str = ""
    fields: tuple[str, ...] = ()
    words: Mapping[int, str] | None = None
    remedy: str = _BROKEN
    required: bool = False
    absent: float = 0

    @property
    def key(self) -> str:
        return TENSORS + self.name

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in (self.words or {}).items()}

    def of(self, parts: Mapping[str, Mapping[str, Any]]) -> Any:
        """The entry of a description."""
        found = (parts[self.part].get(field) for field in self.fields or (self.name,))
        value = next((value for value in found if value is not None), self.absent)
        if self.words is not None and isinstance(value, str):
            return self.numbers[value]
        return value

    def is_absent(self, value: Any) -> bool:
        """True for the entry that every tensor has whose file lacks the array."""
        return isnan(value) if isnan(self.absent) else bool(value == self.absent)


def _numbers(models: Mapping[str, type[Any]]) -> dict[int, str]:
    return {model.number: name for name, model in models.items()}


COLUMNS = (
    Column("name", _STRING, required=True),
    Column("n_out", _U32, "shape", required=True),
    Column("n_in", _U32, "shape", required=True),
    Column("experts", _U32),
    Column("layout", _U8, words={0: "row", 1: "column"}),
    Column(
        "source_type",
        _U32,
        words={kind.value: kind.name for kind in GGMLQuantizationType},
        remedy=_NEWER_TYPE,
        required=True,
    ),
    Column("base", _U8, "base", ("kind",), words=_numbers(BASES), remedy=_NEWER, required=True),
    Column("scale", _F64, "base"),
    Column("code", _U8, "base"),
    Column("fine_code", _U8, "base"),
    Column("fine_tiles", _U32, "base"),
    Column("base_block", _U32, "base", ("block",)),
    Column("seed_per", _U8, "base", words={0: "tensor", 1: "row", 2: "block"}),
    Column("rotation_block", _U32, "base"),
    Column("column_scale", _BOOL, "base"),
    Column("residual", _U8, "residual", ("scheme",), words=_numbers(RESIDUALS), remedy=_NEWER, required=True),
    Column("resid_k", _U32, "residual", ("K", "kept")),
    Column("resid_block", _U32, "residual", ("block",)),
    Column("resid_size", _U32, "residual", ("size",)),
    Column("vals", _U8, "residual", words={0: "fp16", 1: "int8"}),
    Column("trims_soft", _U64, "residual"),
    Column("trims_hard", _U64, "residual"),
    Column("row_scale", _U8, words={0: "f32", 1: "f16"}, required=True),
    *(
        Column(f"norm_{name}", _F32, "norms", (name,), required=True)
        for name in Norms.model_fields
        if name != "rel_out"
    ),
    Column("rel_out", _F32, "norms", absent=nan),
    Column("unsafe", _BOOL),
)
_BY_NAME = {column.name: column for column in COLUMNS}


def description_arrays(descriptions: Sequence[TensorDescription]) -> dict[str, Value]:
    """The keys and arrays that say the same as the descriptions; none for no tensors."""
    parts = [_parts(description) for description in descriptions]
    arrays: dict[str, Value] = {}
    for column in COLUMNS if parts else ():
        values = [column.of(one) for one in parts]
        if column.required or not all(map(column.is_absent, values)):
            arrays[column.key] = Typed(values, GGUFValueType.ARRAY, column.type)
    return arrays


def _parts(description: TensorDescription) -> dict[str, dict[str, Any]]:
    fields = description.model_dump()
    shape = dict(zip(("n_out", "n_in"), description.shape, strict=True))
    return {"": fields, "shape": shape, **{part: fields[part] for part in ("base", "residual", "norms")}}


def read_descriptions(metadata: Metadata) -> list[TensorDescription]:
    """Descriptions of all converted tensors of a file, in file order.

    Raises UnsupportedVersionError for an array, a kind, a scheme or a code that this release does not know, else
    FormatError.
    """
    keys = [key for key in metadata if key.startswith(TENSORS)]
    unknown = next((key for key in keys if key.removeprefix(TENSORS) not in _BY_NAME), None)
    if unknown is not None:
        raise UnsupportedVersionError(f"{metadata.path}: the key {unknown} is not known; {_NEWER}")
    if not keys:
        return []
    table = {}
    for column in COLUMNS:
        if column.key not in metadata:
            if column.required:
                raise FormatError(f"{metadata.path}: the key {column.key} is missing; {_BROKEN}")
            continue
        table[column.name] = metadata.array(column.key, column.type)
        count, expected = len(table[column.name]), len(table["name"])
        if count != expected:
            raise FormatError(f"{metadata.path}: {column.key} has {count} entries for {expected} tensors; {_BROKEN}")
    rows = zip(*table.values(), strict=True)
    return [_Row(metadata, dict(zip(table, row, strict=True))).description() for row in rows]


@cache
def _fields(base: str, residual: str) -> tuple[tuple[Column, str | None, bool], ...]:
    """What field each column is in a tensor of this base and residual, if any, and whether it has no default."""
    models: dict[str, type[BaseModel]] = {"": TensorDescription, "norms": Norms}
    models |= {"base": BASES[base], "residual": RESIDUALS[residual]}
    found: list[tuple[Column, str | None, bool]] = []
    for column in COLUMNS:
        if column.part == "shape":
            found.append((column, column.name, True))
            continue
        fields = models[column.part].model_fields
        field = next((field for field in column.fields or (column.name,) if field in fields), None)
        found.append((column, field, field is not None and fields[field].is_required()))
    return tuple(found)


class _Row:
    """The entries of one tensor."""

    def __init__(self, metadata: Metadata, values: dict[str, Any]) -> None:
        self.path = metadata.path
        self.values = values

    def description(self) -> TensorDescription:
        found: dict[str, dict[str, Any]] = {part: {} for part in ("", "shape", "base", "residual", "norms")}
        for column, field, needed in _fields(self._word("base"), self._word("residual")):
            value = self.values.get(column.name, column.absent)
            absent = column.is_absent(value)
            if field is None:
                if not absent:
                    kind = self._word(column.part)
                    raise self._error(column.name, f"is {value}, but 0 is all that {column.part} {kind} can have")
            elif needed or not absent:
                found[column.part][field] = value if column.words is None else self._word(column.name)
        nested: dict[str, Any] = {"shape": tuple(found["shape"].values())}
        nested |= {part: found[part] for part in ("base", "residual", "norms")}
        try:
            return TensorDescription.model_validate(found[""] | nested)
        except ValidationError as error:
            raise self._of_validation(error) from error

    def _word(self, name: str) -> str:
        column, value = _BY_NAME[name], self.values.get(name, 0)
        assert column.words is not None
        if value not in column.words:
            raise self._error(name, f"has the number {value}, which is not known", column.remedy)
        return column.words[value]

    def _error(self, name: str, what: str, remedy: str = _BROKEN) -> FormatError:
        kind = UnsupportedVersionError if remedy == _NEWER else FormatError
        return kind(f"{self.path}: {TENSORS}{name} of tensor {self.values['name']!r} {what}; {remedy}")

    def _of_validation(self, error: ValidationError) -> FormatError:
        """The exception that names the array of the field that pydantic refused."""
        first = error.errors()[0]
        location = [str(part) for part in first["loc"]]
        what = first["msg"].removeprefix("Value error, ")
        if not location:  # what several fields say together
            return FormatError(f"{self.path}: tensor {self.values['name']!r}: {what}; {_BROKEN}")
        if location[0] == "shape":
            return self._error(("n_out", "n_in")[int(location[1])], f"is out of range: {what}")
        part, field = (location[0], location[-1]) if len(location) > 1 else ("", location[0])
        column = next(c for c in COLUMNS if c.part == part and field in (c.fields or (c.name,)))
        if first["type"] == "unknown_lane_code":
            return self._error(column.name, what, _NEWER)
        return self._error(column.name, f"is {self.values.get(column.name, column.absent)}: {what}")
