"""What may be asked of a base and a residual, as they stand in a tensor's description (docs/reference/format.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
F32 = npt.NDArray[np.float32]

FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
MAX_U16_COLUMNS = 65536


def one_of(types: Iterable[Any]) -> Any:
    """The union of some types, for a field."""
    return reduce(or_, types)


def check_kept(kept: int, block: int, n_in: int) -> None:
    """Raises ValueError when a row of n_in columns has not so many blocks, or more than 16 bits can say."""
    blocks = -(-n_in // block)
    if kept > blocks or blocks > 1 << 16:
        raise ValueError(f"kept is {kept} for {blocks} blocks of columns")


class Stored(BaseModel):
    """What bases and residuals have in common.

    `suffixes` are those of the payload beside the ones that every tensor has, `unsigned` those of them that are stored
    in signed ggml types, `finite` those that must not have NaN.
    """

    model_config = FROZEN
    number: ClassVar[int]
    suffixes: ClassVar[tuple[str, ...]] = ()
    unsigned: ClassVar[tuple[str, ...]] = ()
    finite: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def name(cls) -> str:
        """The kind or scheme."""
        field = "kind" if "kind" in cls.model_fields else "scheme"
        return str(get_args(cls.model_fields[field].annotation)[0])

    def check(self, n_out: int, n_in: int) -> None:
        """Raises ValueError when a matrix of this shape cannot have it."""

    def layout(self, n_out: int, n_in: int) -> Layout:
        """Suffix -> (NumPy shape, stored dtype), in file order, for all rows together."""
        return {}

    def check_data(self, arrays: Arrays, n_in: int) -> None:
        """Raises ValueError with what is wrong in the payload."""


class Base(Stored):
    """A base; this one has no values."""

    kind: str

    def arguments(self) -> dict[str, Any]:
        """What `_core.Weight` is told of it, beside seed and arrays."""
        return {"base_kind": self.number}

    def decode_ops(self) -> int:
        """Integer operations for a value."""
        return 0

    def scales_rows(self) -> bool:
        """True when the row scales that it was encoded with are the best ones for it."""
        return True

    def transform_ops(self, n_out: int, n_in: int) -> int:
        """Operations for the inputs of a token, beside the rotation."""
        return 0


class ScaledBase(Base):
    """A base of values that are multiplied by a scale."""

    scale: float

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {
            "base_scale": self.scale,
            "rotation_block": getattr(self, "rotation_block", 0),
        }


class Residual(Stored):
    """A residual; this one keeps nothing."""

    scheme: str
    fits_experts: ClassVar[bool] = True

    def float_macs(self, n_out: int, n_in: int) -> int:
        """Products in float32 for a token."""
        return 0


class Kind(BaseModel):
    """Of an ablation, a kind that measurements advise against: how it is made. `recipe` is one of convert/recipe.py."""

    @classmethod
    def check_recipe(cls, recipe: Any) -> None:
        """Raises ValueError for settings that go with this kind and were given with others, or contradict each other"""


class BaseKind(ScaledBase, Kind):
    """A base that is one of the ablations."""

    @classmethod
    def describe(cls, recipe: Any) -> BaseKind:
        """The base of a tensor before it is encoded."""
        raise NotImplementedError

    @classmethod
    def row_bits(cls, recipe: Any, n_in: int) -> int:
        """Bits that it takes of a row."""
        return 0

    def encode(self, weights: F32, recipe: Any, importance: F32 | None) -> tuple[BaseKind, int, dict[str, Array], F32]:
        """The base with what was fitted, its seed, its arrays, and row scales float32 [n_out], for float32[n_out, n_in]
        whose columns weigh `importance`."""
        raise NotImplementedError


class ResidualKind(Residual, Kind):
    """A residual that is one of the ablations. `all_rows`: its rows are chosen together, not one by one.

    `entries` is what a row keeps when it is not said: entries, blocks or atoms.
    """

    all_rows: ClassVar[bool] = False
    entries: ClassVar[int]

    @classmethod
    def describe(cls, recipe: Any, entries: int) -> ResidualKind:
        """The residual of a tensor whose rows keep so many entries, blocks or atoms."""
        raise NotImplementedError

    @classmethod
    def room(cls, recipe: Any, n_in: int, n_out: int) -> tuple[int, int, float]:
        """Most entries of a row, bits of one, and bits that a row takes beside them."""
        raise NotImplementedError

    def encode(self, delta: F32, row_scale: F32, importance: F32 | None, threads: int) -> dict[str, Array]:
        """Suffix -> stored array for Δ float32[n_out, n_in], whose rows weigh `row_scale`² in the error and its columns
        `importance`."""
        raise NotImplementedError
