"""The smallest budget that keeps to a change of the perplexity: every step builds and evaluates one model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..errors import RecipeError

STEPS = 6
NEAR = 0.05  # bits per weight: a bracket this narrow is good enough


class Tried(Protocol):
    """What a step has built: its predicted divergence in nats, and the change of the perplexity with its margin."""

    @property
    def predicted_kl(self) -> float: ...
    @property
    def change_limit(self) -> float: ...


T = TypeVar("T", bound=Tried)


def smallest(
    limit: float, low: float, high: float, predict: Callable[[float], float], build: Callable[[float], T]
) -> list[T]:
    """Models that were built, the smallest one within `limit` percent last.

    Args:
        low, high: bits per weight between which to search.
        predict: predicted divergence in nats at so many bits per weight; falls with them.
        build: builds and evaluates a model of so many bits per weight.
    The logarithm of the change is taken to be proportional to the predicted divergence, with the factor of the model
    built last (at first 1); a bracket of what was too much and what was within keeps that honest. Raises RecipeError
    when no step was within the limit.
    """
    factor, below, above = 1.0, low, high
    tried: list[T] = []
    best: T | None = None
    for _ in range(STEPS):
        bits = _bits_for(math.log1p(limit / 100) / factor, below, above, predict)
        if tried and (bits - below < NEAR / 2 or above - bits < NEAR / 2):
            bits = (below + above) / 2
        found = build(bits)
        tried.append(found)
        if found.change_limit <= limit:
            best, above = found, bits
        else:
            below = bits
        factor = max(math.log1p(max(found.change_limit, 0.0) / 100), 1e-6) / max(found.predicted_kl, 1e-12)
        if above - below <= NEAR:
            break
    if best is None:
        raise RecipeError(
            f"--max-dppl {limit:g} is not met at {below:.2f} bits per weight (change with its margin: "
            f"{tried[-1].change_limit:.2f}%); allow more, or give more --verify-chunks for a smaller margin"
        )
    return [*(one for one in tried if one is not best), best]


def _bits_for(loss: float, low: float, high: float, predict: Callable[[float], float]) -> float:
    """The least bits in the range whose predicted loss is at most `loss`, or the most of it."""
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if predict(middle) <= loss else (middle, high)
    return high
