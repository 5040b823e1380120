"""From sensitivities to a recipe: the choices of every group, their allocation, and the options that say the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..convert.plan import bytes_at
from ..convert.recipe import Recipe
from ..errors import RecipeError
from ..gguf import names
from ..gguf.source import SourceModel
from .allocate import Choice, Rate, allocate
from .groups import Group
from .sensitivity import Sensitivity, sampled_tensors
from .store import EncodedStore


class Allocator:
    """Allocates rates to groups for any budget. `fixed` are tensors outside of the groups, with their rates."""

    def __init__(
        self,
        recipe: Recipe,
        source: SourceModel,
        groups: Sequence[Group],
        sensitivity: Sensitivity,
        store: EncodedStore,
        fixed: Mapping[str, Rate],
    ) -> None:
        self.groups = {group.name: group for group in groups}
        self.fixed = dict(fixed)
        self._recipe = recipe
        self._sensitivity = sensitivity
        self._fixed_bytes = sum(bytes_at(recipe, source, name, rate) for name, rate in fixed.items())
        self._weights = {
            group.name: sum(int(np.prod(source.tensors[n].shape)) for n in group.tensors) for group in groups
        }
        self._rates = store.rates
        ladder: list[Rate] = [*self._rates, "dense"]
        self._bytes = {
            group.name: {rate: sum(bytes_at(recipe, source, name, rate) for name in group.tensors) for rate in ladder}
            for group in groups
        }
        gaps = _errors(store, groups, sensitivity.reference)
        self._beyond = {(name, rate) for (name, rate), error in gaps.items() if error > recipe.seeddelta_gap}

    @property
    def lowest_bytes(self) -> int:
        """Bytes of all targets at the lowest rates."""
        return self._fixed_bytes + sum(min(c.nbytes for c in options) for options in self._choices(1).values())

    @property
    def highest_bytes(self) -> int:
        """Bytes of all targets with every group dense."""
        return self._fixed_bytes + sum(found["dense"] for found in self._bytes.values())

    def forbid(self, tensor: str, rate: float) -> None:
        """The group of a tensor cannot have this rate: the build found it beyond the gap."""
        (group,) = (name for name, group in self.groups.items() if tensor in group.tensors)
        self._beyond.add((group, rate))

    def rates(self, budget: int, *, trust: float = 1.0) -> tuple[dict[str, Rate], float]:
        """Rates of all groups within a budget of bytes for all targets, and the predicted divergence.

        `trust` below 1 draws the sensitivities (nats a weight) towards their mean, in logarithms; with 0 all weights
        cost alike, and the rates are as equal as the bytes allow. Raises RecipeError
        when the budget is too small.
        """
        chosen = allocate(self._choices(trust), budget - self._fixed_bytes)
        rates = {group: choice.rate for group, choice in chosen.items()}
        if set(rates.values()) == {"dense"}:
            raise RecipeError("the budget is enough for the dense matrices: there is nothing to convert; lower it")
        return rates, self.predicted(rates)

    def predicted(self, rates: Mapping[str, Rate]) -> float:
        """Predicted divergence of the whole model, in nats: the groups' sum times the measured additivity."""
        total = sum(
            self._sensitivity.loss(self.groups[group], rate) for group, rate in rates.items() if rate != "dense"
        )
        return total * self._sensitivity.additivity

    def tensors(self, rates: Mapping[str, Rate]) -> dict[str, float]:
        """Rate of each tensor that is encoded."""
        by_name = {name: rate for group, rate in rates.items() for name in self.groups[group].tensors} | self.fixed
        return {name: rate for name, rate in by_name.items() if rate != "dense"}

    def recipe(self, rates: Mapping[str, Rate]) -> Recipe:
        """The recipe that says so: a rate for most, and `tensor_type` for the others."""
        weights: Counter[float] = Counter()
        for group, rate in rates.items():
            if rate != "dense":
                weights[rate] += self._weights[group]
        most = weights.most_common(1)[0][0] if weights else 4.0
        given = self._recipe.model_dump(exclude_defaults=True)
        for name in ("preset", "bits", "target_bpw", "size", "tensor_type", "dry_run"):
            given.pop(name, None)
        given["targets"] = self._recipe.targets  # their default depends on other options
        overrides = [*self._recipe.tensor_type, *_overrides(self.groups, rates, most)]
        return Recipe(**given, bits=most, tensor_type=tuple(overrides))

    def _choices(self, trust: float) -> dict[str, list[Choice]]:
        found = {name: max(kl.kl, 1e-12) / self._weights[name] for name, kl in self._sensitivity.groups.items()}
        middle = float(np.exp(np.mean(np.log(list(found.values())))))
        choices = {}
        for name, group in self.groups.items():
            factor = (found[name] / middle) ** (trust - 1)
            options: list[Choice] = [
                Choice(rate, self._bytes[name][rate], self._sensitivity.loss(group, rate) * factor)
                for rate in self._rates
                if (name, rate) not in self._beyond
            ]
            choices[name] = [*options, Choice("dense", self._bytes[name]["dense"], 0.0)]
        return choices


def _errors(store: EncodedStore, groups: Sequence[Group], reference: float) -> dict[tuple[str, float], float]:
    """By group and rate: the largest relative error of its tensors, as the builder's gap has it. At the reference it is
    measured, at other rates it goes as that of the role's sample."""

    def error(name: str, rate: float) -> float:
        return store.metrics(name, rate).error

    samples = sampled_tensors(groups)
    found = {}
    for group in groups:
        sample = samples.get(group.role, next(iter(samples.values())))
        largest = max(error(name, reference) for name in group.tensors)
        for rate in store.rates:
            found[group.name, rate] = largest * error(sample, rate) / error(sample, reference)
    return found


def _overrides(groups: Mapping[str, Group], rates: Mapping[str, Rate], most: float) -> list[str]:
    """`REGEX=RATE` of what differs from the rate of most, by role and rate."""
    layers: dict[tuple[str, Rate], list[int]] = {}
    alone = []
    for group, rate in rates.items():
        for name in groups[group].tensors:
            place = names.split_name(name)
            if place is None:  # without an override it, or a small matrix, would have one step more
                alone.append(f"^{re.escape(name)}$={_text(rate)}")
            elif rate != most or names.is_small_matrix(name):
                layers.setdefault((place[1], rate), []).append(place[0])
    texts = [
        rf"^blk\.({'|'.join(map(str, sorted(found)))})\.{role}\.weight$={_text(rate)}"
        for (role, rate), found in sorted(layers.items(), key=lambda item: (item[0][0], str(item[0][1])))
    ]
    return texts + alone


def _text(rate: Rate) -> str:
    return rate if isinstance(rate, str) else f"{rate:g}"
