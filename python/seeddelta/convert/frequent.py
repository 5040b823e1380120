"""Rows of the embedding and of the output matrix by how often their tokens come: frequent ones get a finer code.

A token's row is read when the token is in the text, and an error in its logit costs what the token's probability is.
A few thousand tokens are most of any text: on Gemma 3 270M, 10% of the tiles of 16 rows have the tokens of 90% of
English text that was not counted. Parts of the calibration text that are held out predict it (research/frequent_rows).
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
# Bits that the other rows may have less than they would have alike: texts in other languages are made of them. With 1,
# Gemma 3 270M had the same divergence in English, and 1.18 and 1.30 times that of .5 in Chinese and Russian.
MOST_LOST = 0.5
_LEAST_TILES = 256  # 4096 rows: of fewer, each is frequent


@dataclass(frozen=True)
class FineTiles:
    """Tiles of a matrix that have another rate than the rest: `tiles` has a bit for each, the first one lowest.

    `share` of the tokens of a text that was not counted are theirs.
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
    """How often the tokens of each tile of a matrix with a row for each token are in each part of a text."""

    counts: npt.NDArray[np.int64]  # [parts, tiles]

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], counts: npt.NDArray[np.int64] | None) -> Frequent | None:
        """From the number of times that each token is in each part; None for other matrices and small vocabularies.

        `counts` is int64[parts, tokens]; tokens that the matrix has no row for are left out.
        """
        tiles = -(-shape[0] // LANES)
        if counts is None or name not in names.MODEL_TENSORS or len(shape) != 2 or tiles < _LEAST_TILES:
            return None
        known = np.zeros((len(counts), tiles * LANES), np.int64)
        known[:, : min(counts.shape[1], shape[0])] = counts[:, : shape[0]]
        return cls(known.reshape(len(counts), tiles, LANES).sum(axis=2)) if known.any() else None

    def fine(self, share: float) -> FineTiles:
        """The tiles with most of the text, a share of all, whose bits are to be chosen.

        What they have of texts like this one is measured: each part is such a text for the counts of the other parts.
        """
        together = self.counts.sum(axis=0)
        wanted = max(1, round(share * len(together)))
        found = sum(int(part[_most(together - part, wanted)].sum()) for part in self.counts)
        chosen = np.zeros(len(together), bool)
        chosen[_most(together, wanted)] = True
        return FineTiles(0, np.packbits(chosen, bitorder="little").tobytes(), found / int(together.sum()))


def _most(counts: npt.NDArray[np.int64], wanted: int) -> npt.NDArray[np.intp]:
    return np.argsort(-counts, kind="stable")[:wanted]


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
