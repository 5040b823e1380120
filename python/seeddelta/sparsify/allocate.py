"""Which fraction of each input is kept, for a budget: the least expected harm for the weights that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError


@dataclass(frozen=True)
class Profile:
    """One input that several matrices may read.

    `keep`, `threshold`, `dropped` f64[levels]: fractions of the units, ascending to 1, the mean score of the last unit
    kept, and the mean share of the squared scores left out. `cost` is the number of weights that read the input,
    `zeros` the mean share of its units that are exactly 0.
    """

    name: str
    layer: int
    kind: str
    cost: int
    keep: npt.NDArray[np.float64]
    threshold: npt.NDArray[np.float64]
    dropped: npt.NDArray[np.float64]
    zeros: float = 0.0

    def dropped_at(self, keep: float) -> float:
        return float(np.interp(keep, self.keep, self.dropped))

    def threshold_at(self, keep: float) -> float:
        return float(np.interp(keep, self.keep, self.threshold))


def allocate(profiles: Sequence[Profile], harm: Sequence[float], share: float) -> list[float]:
    """Fractions such that `share` of all weights is read, and Σ harm · dropped is as small as it can be.

    `harm` is what leaving out all of an input's energy is expected to cost. Lagrange's method on the levels of the
    profiles (Shoham and Gersho 1988): every input keeps what minimizes harm · dropped + λ · cost · keep.
    Raises ConfigError for a share outside of the levels.
    """
    lowest = max(float(profile.keep[0]) for profile in profiles)
    if not lowest <= share <= 1:
        raise ConfigError(f"a share of {share:g} of the weights is out of range; give {lowest:g} to 1")
    total = sum(profile.cost for profile in profiles)

    def at(multiplier: float) -> list[float]:
        return [
            float(profile.keep[np.argmin(factor * profile.dropped + multiplier * profile.cost / total * profile.keep)])
            for profile, factor in zip(profiles, harm, strict=True)
        ]

    def read(kept: Sequence[float]) -> float:
        return sum(profile.cost * keep for profile, keep in zip(profiles, kept, strict=True)) / total

    low, high = 0.0, 1.0
    while read(at(high)) > share:
        high *= 2
        if high > 1e30:  # an input without energy costs nothing to leave out, one without harm neither
            break
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if read(at(middle)) <= share else (middle, high)
    # between the two neighboring solutions, in proportion: levels are steps of 5%
    less, more = at(high), at(low)
    span = read(more) - read(less)
    part = (share - read(less)) / span if span > 0 else 0.0
    return [a + min(max(part, 0.0), 1.0) * (b - a) for a, b in zip(less, more, strict=True)]
