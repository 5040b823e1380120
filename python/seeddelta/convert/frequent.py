"""Rows of the embedding and of the output matrix by how often their tokens come: frequent ones get a finer code.

A token's row is read when the token is in the text, and an error in its logit costs what the token's probability is.
A few thousand tokens are most of any text: on Gemma 3 270M, 10% of the tiles of 16 rows have the tokens of 90% of
English text that was not counted (research/frequent_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..gguf import names
from ..gguf.schema import LANE_BYTES, LANES
from .rates import Rate, lane_code

_FINE = " fine"  # ends the name of the fine tiles of a matrix

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

    def fine(self, share: float) -> FineTiles:
        """The tiles with most of the text, a share of all, whose bits are to be chosen."""
        chosen = np.zeros(len(self.shares), bool)
        chosen[np.argsort(-self.shares, kind="stable")[: max(1, round(share * len(self.shares)))]] = True
        packed = np.packbits(chosen, bitorder="little").tobytes()
        return FineTiles(0, packed, float(self.shares[chosen].sum()))


@dataclass(frozen=True)
class Parts:
    """Matrices whose fine tiles are matrices of their own, for the budget.

    `shapes` are those of all matrices, and `whole` gives the bytes of one at a rate.
    """

    fine: Mapping[str, FineTiles]
    shapes: Mapping[str, tuple[int, ...]]
    whole: Callable[[str, Rate], int]

    def rates(self, rates: Mapping[str, Rate]) -> dict[str, Rate]:
        return {**rates, **{name + _FINE: rates[name] for name in self.fine}}

    def prices(self, prices: Mapping[str, float]) -> dict[str, float]:
        coarse = {name: prices[name] * (1 - tiles.share) for name, tiles in self.fine.items()}
        return {**prices, **coarse, **{name + _FINE: prices[name] * tiles.share for name, tiles in self.fine.items()}}

    def bytes_at(self, name: str, rate: Rate) -> int:
        own = name.removesuffix(_FINE)
        if own not in self.fine:
            return self.whole(name, rate)
        lines = lane_code(bits_of({name: rate}, name)).lines(self.shapes[own][1])
        tiles = self.fine[own].count * lines * LANE_BYTES
        return tiles if name != own else self.whole(own, rate) - tiles + len(self.fine[own].tiles)

    def joined(self, rates: Mapping[str, Rate]) -> tuple[dict[str, Rate], dict[str, FineTiles]]:
        """Rates of the matrices, and the fine tiles where those have another one."""
        bits = {name: bits_of(rates, name + _FINE) for name in self.fine}
        fine = {name: replace(tiles, bits=bits[name]) for name, tiles in self.fine.items() if bits[name] != rates[name]}
        ours = {name + _FINE for name in self.fine}
        return {name: rate for name, rate in rates.items() if name not in ours}, fine


def bits_of(rates: Mapping[str, Rate], name: str) -> float:
    """The rate of a matrix of byte lanes."""
    rate = rates[name]
    assert isinstance(rate, (int, float))
    return rate
