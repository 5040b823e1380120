"""The rates of least predicted loss within a budget: a knapsack with several choices a group, solved exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np

from ..errors import RecipeError

Rate = float | Literal["dense"]
_CELLS = 1 << 18  # of the budget; steps of bytes that are finer are rounded up to a cell


@dataclass(frozen=True)
class Choice:
    """A rate that a group may have: all bytes of its tensors, and the predicted loss in nats."""

    rate: Rate
    nbytes: int
    loss: float


def allocate(choices: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """One choice a group, together within `budget` bytes, of the least sum of losses; of equal ones the smallest.

    Dynamic programming over the bytes above the cheapest choices, in units of their greatest common divisor. That is
    exact; a budget of more than 2^18 units is cut into as many, with bytes rounded up, so that it is never exceeded.
    Raises RecipeError when even the cheapest choices do not fit.
    """
    least = {group: min(choice.nbytes for choice in options) for group, options in choices.items()}
    room = budget - sum(least.values())
    if room < 0:
        raise RecipeError(
            f"the tensors take {sum(least.values())} bytes at the lowest rates, the budget leaves {budget}; raise it, "
            "or free some with --targets, --layers or a larger --seeddelta-gap"
        )
    steps = [choice.nbytes - least[group] for group, options in choices.items() for choice in options]
    unit = max(gcd(*steps), -(-room // _CELLS), 1)
    cells = min(room, sum(max(c.nbytes for c in options) - least[g] for g, options in choices.items())) // unit
    best = np.zeros(cells + 1)  # least loss of the groups so far within so many units
    picks = []
    for group, options in choices.items():
        after = np.full(cells + 1, np.inf)
        pick = np.zeros(cells + 1, np.int16)
        for at, choice in enumerate(options):
            cost = -(-(choice.nbytes - least[group]) // unit)
            if cost > cells:
                continue
            total = best[: cells + 1 - cost] + choice.loss
            better = total < after[cost:]
            after[cost:][better] = total[better]
            pick[cost:][better] = at
        best = after
        picks.append(pick)
    left = int(np.argmin(best))  # the first of equal ones: the smallest
    chosen: dict[str, Choice] = {}
    for (group, options), pick in zip(reversed(list(choices.items())), reversed(picks), strict=True):
        chosen[group] = options[pick[left]]
        left -= -(-(chosen[group].nbytes - least[group]) // unit)
    return {group: chosen[group] for group in choices}
