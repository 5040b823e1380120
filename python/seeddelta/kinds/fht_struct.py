"""Base kind fht_struct: W0 = H G Π H B, seeded signs, a permutation and a diagonal between Hadamard transforms.

Fastfood (Le, Sarlós, Smola 2013); its last diagonal is the row scale here (docs/reference/format.md).
"""

from __future__ import annotations

from typing import Any, Literal

from .fitting import FittedBase
from .kind import F32

MAX_COLUMNS = 1 << 18  # beyond, the integers are not exact in float32


class FhtStructBase(FittedBase):
    """Base of two Hadamard transforms, a permutation and seeded diagonals: a product takes O(d log d)."""

    number = 1
    kind: Literal["fht_struct"]

    @classmethod
    def describe(cls, recipe: Any) -> FhtStructBase:
        return cls(kind="fht_struct", scale=recipe.base_scale or 0.0)

    def check(self, n_out: int, n_in: int) -> None:
        if n_in > MAX_COLUMNS:
            raise ValueError(f"fht_struct has at most {MAX_COLUMNS} columns, not {n_in}")

    def transform_ops(self, n_out: int, n_in: int) -> int:
        """Of two transforms, signs and G for each block of rows."""
        d = block_rows(n_in)
        return -(-n_out // d) * 2 * d * d.bit_length()

    def values(self, seed: int, begin: int, end: int, n_in: int, columns: int) -> F32:
        from .. import _core

        return _core.base_values(self.number, seed, begin, end, n_in)[:, :columns]


def block_rows(n_in: int) -> int:
    """Rows d of a block of W0."""
    return max(64, 1 << (n_in - 1).bit_length())
