"""Rows of the embedding and of the output matrix by how often their tokens come: frequent ones get a finer code.

A token's row is read when the token is in the text, and an error in its logit costs what the token's probability is.
A few thousand tokens are most of any text: on Gemma 3 270M, 10% of the tiles of 16 rows have the tokens of 90% of texts
that were not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gguf import names
from ..gguf.schema import LANES

# Share of the tiles that may have a finer code. The budget tries all, and takes the one that costs the model least.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35)
# Bits that the other rows may have less than they would have alike: texts in other languages are made of them.
MOST_LOST = 1
# Share of the text's tokens that is spread over all rows alike: texts of users have tokens that were not counted.
_UNSEEN = 0.2
_LEAST_TILES = 256  # 4096 rows: of fewer, each is frequent


@dataclass(frozen=True)
class FineTiles:
    """Tiles of a matrix that have another rate than the rest: `tiles` has a bit for each, the first one lowest.

    `share` of the text's tokens are theirs.
    """

    bits: float
    tiles: bytes
    share: float

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """One a tile, and up to seven more."""
        return np.unpackbits(np.frombuffer(self.tiles, np.uint8), bitorder="little").astype(bool)

    @property
    def count(self) -> int:
        return int(self.mask.sum())

    def rows(self, n_rows: int) -> npt.NDArray[np.bool_]:
        """True for the rows of these tiles."""
        return np.repeat(self.mask, LANES)[:n_rows]


@dataclass(frozen=True)
class Frequent:
    """How much of the text each tile of a matrix with a row for each token has."""

    shares: npt.NDArray[np.float64]  # [tiles], the sum is 1

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], counts: npt.NDArray[np.int64] | None) -> Frequent | None:
        """From the number of times that each token was counted; None for other matrices and small vocabularies."""
        tiles = -(-shape[0] // LANES)
        if counts is None or name not in names.MODEL_TENSORS or len(shape) != 2 or tiles < _LEAST_TILES:
            return None
        known = np.zeros(tiles * LANES)
        known[: min(len(counts), shape[0])] = counts[: shape[0]]
        if not known.any():
            return None
        found = known.reshape(tiles, LANES).sum(axis=1)
        return cls((1 - _UNSEEN) * found / found.sum() + _UNSEEN / tiles)

    def fine(self, share: float, bits: float) -> FineTiles:
        """The tiles with most of the text, a share of all."""
        chosen = np.zeros(len(self.shares), bool)
        chosen[np.argsort(-self.shares, kind="stable")[: max(1, round(share * len(self.shares)))]] = True
        packed = np.packbits(chosen, bitorder="little").tobytes()
        return FineTiles(bits, packed, float(self.shares[chosen].sum()))
