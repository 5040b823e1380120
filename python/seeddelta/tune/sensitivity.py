"""How much each group of matrices costs: the divergence of the model with that group alone in its encoded form.

At one rate, the reference, every group is measured. At other rates the loss is predicted: with small errors the
divergence is a quadratic form of them, so it goes with the square of the encoder's own relative error, which is
measured on one matrix of each role. Some groups are measured at other rates, too, to say how good that is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EvaluationError
from ..evaluate.base_file import BaseWriter
from ..evaluate.kl import DivergenceObserver
from ..evaluate.scoring import score
from ..runtime.decoder import Tokens
from .groups import Group
from .state import State
from .store import EncodedStore
from .switch import SwitchedModel

CHECKED = 4  # groups that are measured at other rates, too
_UNSEEN = 1e-7  # nats: less than this with every matrix encoded means that llama.cpp does not see the exchange


@dataclass(frozen=True)
class Measured:
    """Mean divergence from the original model in nats, and its standard error over tokens."""

    kl: float
    stderr: float


@dataclass(frozen=True)
class Check:
    """A group at another rate than the reference: divergence in nats, predicted and measured."""

    group: str
    rate: float
    predicted_kl: float
    measured_kl: float


@dataclass(frozen=True)
class Sensitivity:
    """Measured divergences at the rate `reference`, by group; `everything` with all groups encoded.

    `curves` has by role the square of the encoder's error at each rate over that at the reference.
    """

    reference: float
    groups: Mapping[str, Measured]
    everything: Measured
    curves: Mapping[str, Mapping[float, float]]
    checks: tuple[Check, ...]

    def loss(self, group: Group, rate: float) -> float:
        """Predicted divergence of a group at a rate, in nats."""
        return self.groups[group.name].kl * self.curves[group.role][rate]

    @property
    def additivity(self) -> float:
        """Divergence with everything encoded, over the sum of the groups'."""
        return self.everything.kl / sum(found.kl for found in self.groups.values())

    @property
    def accuracy(self) -> float:
        """Standard deviation of ln(measured / predicted) in the checks; 0 without checks."""
        logs = [math.log(check.measured_kl / check.predicted_kl) for check in self.checks]
        return math.sqrt(statistics.fmean(log * log for log in logs)) if logs else 0.0


class Meter:
    """Evaluates the model with some tensors encoded, and keeps the results in `state`.

    The original model is loaded, and its log-probabilities are written to `folder`, when the first result is missing.
    """

    def __init__(
        self, store: EncodedStore, state: State, folder: Path, tokens: Tokens, n_ctx: int, threads: int | None
    ) -> None:
        self._store = store
        self._state = state
        self._base = folder / "measure.kld"
        self._tokens = tokens
        self._n_ctx = n_ctx
        self._threads = threads
        self._stack = ExitStack()
        self._model: SwitchedModel | None = None

    def divergence(self, label: str, rates: Mapping[str, float]) -> Measured:
        """Divergence from the original model with these tensors at these rates, the others dense."""

        def measure() -> list[float]:
            model = self._open()
            for name, rate in rates.items():
                model.put(name, self._store.weights(name, rate))
            observer = DivergenceObserver(self._base)
            self._score(model, observer)
            for name in rates:
                model.restore(name)
            found = observer.result()
            return [found.mean, found.stderr]

        return Measured(*self._state.once(label, measure))

    def _open(self) -> SwitchedModel:
        if self._model is None:
            plan = self._store.plan
            model = SwitchedModel(plan.source, plan.targets, n_ctx=self._n_ctx, threads=self._threads)
            self._model = self._stack.enter_context(model)
            with BaseWriter(self._base, self._tokens, self._n_ctx, model.llm.n_vocab()) as writer:
                self._score(model, writer)
        return self._model

    def _score(self, model: SwitchedModel, observer: Any) -> None:
        # a text of one chunk is enough here, but not for llama-perplexity's rule of two
        tokens = np.resize(self._tokens, max(2 * self._n_ctx, len(self._tokens)))
        score(model.llm, tokens, [observer], n_ctx=self._n_ctx, chunks=len(self._tokens) // self._n_ctx)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure_sensitivity(
    meter: Meter, store: EncodedStore, groups: Sequence[Group], reference: float, step: Callable[[str], None]
) -> Sensitivity:
    """Measure all groups at the reference rate, the curves, and the checks. `step` is called with what was measured.

    Raises EvaluationError when llama.cpp computes with a copy of the matrices, so that exchanging them has no effect.
    """
    everything = {name: reference for group in groups for name in group.tensors}
    store.encode(everything.items())
    whole = meter.divergence(f"all@{reference:g}", everything)
    step("all")
    if whole.kl < _UNSEEN:
        raise EvaluationError("this llama.cpp computes with copies of the matrices; measure with another build of it")
    found = {}
    for group in groups:
        label = f"{group.name}@{reference:g}"
        found[group.name] = meter.divergence(label, dict.fromkeys(group.tensors, reference))
        step(group.name)
    curves = _curves(store, groups, reference)
    checks = []
    for group, rate in check_points(groups, found, reference, store.rates):
        store.encode((name, rate) for name in group.tensors)
        measured = meter.divergence(f"{group.name}@{rate:g}", dict.fromkeys(group.tensors, rate))
        checks.append(Check(group.name, rate, found[group.name].kl * curves[group.role][rate], measured.kl))
        step(f"{group.name} at {rate:g} bits")
    return Sensitivity(reference, found, whole, curves, tuple(checks))


def check_points(
    groups: Sequence[Group], found: Mapping[str, Measured], reference: float, rates: Sequence[float]
) -> list[tuple[Group, float]]:
    """The groups of the largest divergence, one rate below and one above the reference."""
    largest = sorted(groups, key=lambda group: -found[group.name].kl)[:CHECKED]
    return [(group, rate) for group in largest for rate in neighbors(reference, rates)]


def neighbors(rate: float, rates: Sequence[float]) -> list[float]:
    """The next lower and the next higher rate, as far as there are such."""
    at = rates.index(rate)
    return [*rates[max(at - 1, 0) : at], *rates[at + 1 : at + 2]]


def _curves(store: EncodedStore, groups: Sequence[Group], reference: float) -> dict[str, dict[float, float]]:
    """By role, from its tensor in the middle. Embedding and output matrix, which are large, take the median of the
    others, if there are others."""
    samples = sampled_tensors(groups)
    store.encode((name, rate) for rate in store.rates for name in samples.values())
    curves = {}
    for role, name in samples.items():
        errors = {rate: store.metrics(name, rate).error for rate in store.rates}
        curves[role] = {rate: (error / errors[reference]) ** 2 for rate, error in errors.items()}
    median = {rate: statistics.median(curve[rate] for curve in curves.values()) for rate in store.rates}
    return {group.role: curves.get(group.role, median) for group in groups}


def sampled_tensors(groups: Sequence[Group]) -> dict[str, str]:
    """A tensor of each role."""
    by_role: dict[str, list[str]] = {}
    for group in groups:
        by_role.setdefault(group.role, []).extend(group.tensors)
    of_blocks = {role: names for role, names in by_role.items() if role not in ("embd", "head")}
    return {role: names[len(names) // 2] for role, names in (of_blocks or by_role).items()}
