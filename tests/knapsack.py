"""The rates of least loss within a budget, solved exactly: what convert/budget.py is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np


@dataclass(frozen=True)
class Choice:
    """A rate that a matrix may have: its bytes, and its loss."""

    rate: float
    nbytes: int
    loss: float


def allocate(choices: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """One choice a matrix, together within `budget` bytes, of the least sum of losses, by dynamic programming."""
    least = {group: min(choice.nbytes for choice in options) for group, options in choices.items()}
    room = budget - sum(least.values())
    steps = [choice.nbytes - least[group] for group, options in choices.items() for choice in options]
    unit = max(gcd(*steps), 1)
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
