"""Encoded matrices by rate, kept on disk: what is measured once is built from later, and survives a kill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..convert.executors import open_pool
from ..convert.parts import Part, open_parts
from ..convert.pipeline import encode_all
from ..convert.plan import Plan, at_rates, make_plan
from ..convert.recipe import Recipe
from ..convert.report import Metrics
from ..storage.checkpoint import offer


class EncodedStore:
    """Parts (convert/parts.py) of the targets of a recipe in `folder`/RATE, made when they are first asked for."""

    def __init__(self, recipe: Recipe, folder: Path, *, progress: bool = True) -> None:
        self.recipe = recipe
        self.plan: Plan = make_plan(recipe)
        self.rates = recipe.rates
        self._folder = folder
        self._progress = progress
        self._parts: dict[tuple[str, float], Part] = {}

    def encode(self, rates: Iterable[tuple[str, float]]) -> None:
        """Make the parts that are not there yet. Raises what a build raises."""
        missing: dict[float, list[str]] = {}
        for name, rate in rates:
            if (name, rate) not in self._parts and name not in missing.setdefault(rate, []):
                missing[rate].append(name)
        for rate, found in missing.items():
            if not found:
                continue
            names = [name for name in self.plan.targets if name in set(found)]  # the order of the file
            plan = at_rates(self.plan, self.recipe, dict.fromkeys(names, rate))
            with (
                open_parts(self.recipe.output, self._folder / f"{rate:g}") as checkpoint,
                open_pool(self.recipe.executor, self.recipe.threads) as pool,
            ):
                parts, _ = encode_all(self.recipe, plan, checkpoint, pool, self._progress)
            self._parts |= {(name, rate): part for name, part in parts.items()}

    def weights(self, name: str, rate: float) -> npt.NDArray[np.float32]:
        """Ŵ of a tensor, float32[rows, n_in]."""
        self.encode([(name, rate)])
        return self._parts[name, rate].decoded()

    def metrics(self, name: str, rate: float) -> Metrics:
        """Errors of a tensor as it is stored."""
        self.encode([(name, rate)])
        return self._parts[name, rate].header.metrics

    def offer(self, rates: Mapping[str, float], folder: Path) -> None:
        """Put the parts of these rates where a build looks for finished ones."""
        self.encode(rates.items())
        for name, rate in rates.items():
            offer(self._parts[name, rate].record, folder)
