"""autotune(options): measure, allocate, build, verify, and write the recipe."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from ..convert import build
from ..convert.jobs import encoder_identity, forget
from ..convert.parts import open_parts
from ..convert.plan import budget_bytes, bytes_at
from ..convert.rates import Proc, overridden
from ..convert.recipe import Recipe
from ..errors import SourceModelError
from ..gguf.source import file_sha256
from ..processors import processors
from ..progress import tqdm
from ..settings.tree import paths_of
from ..storage.output import atomic_output, check_outputs, reading
from .allocate import Rate
from .groups import Group, make_groups
from .options import TuneOptions
from .rates import Allocator
from .report import CheckReport, GroupReport, TuneReport
from .search import smallest
from .sensitivity import CHECKED, Meter, Sensitivity, measure_sensitivity, neighbors
from .state import State
from .store import EncodedStore
from .texts import choose_texts
from .verify import Candidate, Verifier, paired

REPAIR_TRUST = 0.5  # of the sensitivities, in logarithms, when the first allocation is not better


@dataclass(frozen=True)
class Choice:
    """A recipe with its rates by tensor (those that are not there are dense), and the model built from it."""

    recipe: Recipe
    rates: dict[str, float]
    predicted_kl: float
    candidate: Candidate

    @property
    def change_limit(self) -> float:
        return self.candidate.change_limit


@dataclass(frozen=True)
class Decision:
    """`rates` by tensor; the candidates are empty when nothing is compared."""

    recipe: Recipe
    rates: dict[str, float]
    decision: Literal["tuned", "repaired", "uniform", "unverified"]
    message: str
    chosen: Candidate | None = None
    uniform: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()


class Tuning:
    """The inputs of an autotuning, opened and checked: groups of tensors, tensors whose rate is given, the budget."""

    def __init__(self, options: TuneOptions, *, progress: bool) -> None:
        self.options = options
        self.progress = progress
        recipe = options.recipe
        free = {"target_bpw": None, "size": None, "bits": options.reference}
        self.recipe = recipe.model_copy(update=free)
        self.store = EncodedStore(self.recipe, options.folder / "parts", progress=progress)
        self.source = self.store.plan.source
        self.fixed: dict[str, Rate] = {}
        for name in self.store.plan.targets:
            rate = overridden(name, recipe.tensor_type)
            if rate is not None and not isinstance(rate, Proc):  # which the options refuse
                self.fixed[name] = rate
        free_tensors = [name for name in self.store.plan.targets if name not in self.fixed]
        self.groups: list[Group] = make_groups(free_tensors, options.bands, detail=options.detail)
        if not self.groups:
            raise SourceModelError(f"{recipe.input}: no tensor is left to tune; leave some --tensor-type out")

    @property
    def evaluations(self) -> int:
        """Evaluations of the original model with some tensors encoded, at most."""
        checks = min(CHECKED, len(self.groups)) * len(neighbors(self.options.reference, self.store.rates))
        return 1 + len(self.groups) + checks

    def weights(self, names: Iterable[str]) -> int:
        return sum(prod(self.source.tensors[name].shape) for name in names)

    def bits(self, nbytes: int) -> float:
        """Bits a weight of all targets in so many bytes."""
        return 8 * nbytes / self.weights(self.store.plan.targets)

    def bytes(self, bits: float) -> int:
        """Bytes of all targets at so many bits per weight."""
        return round(bits * self.weights(self.store.plan.targets) / 8)

    def budget(self, recipe: Recipe) -> int:
        """What the target of a recipe leaves for them."""
        return budget_bytes(recipe, self.source, self.store.plan.targets)

    def identity(self) -> dict[str, Any]:
        """What decides the measurements: another budget does not."""
        options, recipe = self.options, self.recipe
        files = {"model": recipe.input, "text": options.text, "verify": options.verify_text,
                 "hessian": recipe.hessian, "imatrix": recipe.imatrix}  # fmt: skip
        return {
            "files": {name: None if path is None else file_sha256(path) for name, path in files.items()},
            "encoder": encoder_identity(),
            "recipe": recipe.provenance(),
            "options": options.model_dump(
                mode="json", include={"ctx", "chunks", "verify_chunks", "bands", "detail", "reference"}
            ),
        }


def autotune(options: TuneOptions, *, progress: bool = True) -> TuneReport:
    """Choose the rate of every group of matrices, write the recipe, and return the report.

    What is measured is kept in `options.folder` until the end; killed at any point, the same call goes on from there.
    Raises what a build and an evaluation raise, RecipeError for a budget that cannot be met.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        inputs = [*paths_of(options.recipe)[0], options.text, options.verify_text]
        stack.enter_context(reading(path for path in inputs if path is not None))
        check_outputs([options.output, options.recipe.output if options.build else None])
        given = options.recipe
        options = options.model_copy(update={"recipe": stack.enter_context(given.with_dense_input(progress=progress))})
        stack.callback(forget)
        tuning = Tuning(options, progress=progress)
        stack.enter_context(open_parts(options.output, options.folder))  # its lock: one autotuning at a time
        state = State(options.folder / "measured.sdpart", tuning.identity())
        texts = choose_texts(options)
        sensitivity = _measure(tuning, state, texts.tokens)
        allocator = Allocator(
            tuning.recipe, tuning.source, tuning.groups, sensitivity, tuning.store, tuning.fixed
        )  # fmt: skip
        verifier = None
        if texts.held_out is not None:
            verifier = Verifier(options, tuning.store, state, texts.held_out, progress=progress)
        result = _decide(tuning, allocator, verifier)
        report = _report(tuning, sensitivity, result, state.measured, state.restored, started)
        _deliver(tuning, result, verifier, given)
        for file in options.folder.glob("candidate-*"):  # the parts make them again in seconds
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)
    return report


def _measure(tuning: Tuning, state: State, tokens: Any) -> Sensitivity:
    options = tuning.options
    with (
        Meter(
            tuning.store, state, options.folder, tokens, options.ctx, options.recipe.threads or processors()
        ) as meter,
        tqdm(total=tuning.evaluations, desc="measure", unit="group", disable=not tuning.progress) as bar,
    ):  # fmt: skip

        def step(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        return measure_sensitivity(meter, tuning.store, tuning.groups, options.reference, step)


def _decide(tuning: Tuning, allocator: Allocator, verifier: Verifier | None) -> Decision:
    options, recipe = tuning.options, tuning.options.recipe
    if verifier is None:
        rates, _ = allocator.rates(tuning.budget(recipe))
        message = "not compared with anything (--verify-chunks 0)"
        return Decision(allocator.recipe(rates), allocator.tensors(rates), "unverified", message)
    if options.max_dppl is None:
        tried = [_candidate(tuning, allocator, verifier, tuning.budget(recipe), "tuned")]
    else:
        tried = smallest(
            options.max_dppl,
            tuning.bits(allocator.lowest_bytes),
            tuning.bits(allocator.highest_bytes - 1),  # not all dense
            lambda bits: allocator.rates(tuning.bytes(bits))[1],
            lambda bits: _candidate(tuning, allocator, verifier, tuning.bytes(bits), f"tuned to {bits:.2f} bits"),
        )
        recipe = recipe.model_copy(update={"target_bpw": tried[-1].candidate.bits_per_weight})
    budget = tuning.budget(recipe)
    tuned, uniform = tried[-1], _candidate(tuning, allocator, verifier, budget, "uniform", trust=0.0)
    tried.append(uniform)

    def decide(choice: Choice, decision: Any, message: str) -> Decision:
        candidates = tuple(one.candidate for one in tried)
        return Decision(
            choice.recipe, choice.rates, decision, message, choice.candidate, uniform.candidate, candidates
        )  # fmt: skip

    if _better(tuned, uniform):
        return decide(tuned, "tuned", _message(tuned, uniform))
    repaired = _candidate(tuning, allocator, verifier, budget, "repaired", trust=REPAIR_TRUST)
    tried.append(repaired)
    limit = math.inf if options.max_dppl is None else options.max_dppl
    if _better(repaired, uniform) and repaired.change_limit <= limit:
        return decide(repaired, "repaired", _message(repaired, uniform))
    if uniform.change_limit <= limit:
        return decide(uniform, "uniform", f"rolled back to uniform rates: {_message(tuned, uniform)}")
    return decide(tuned, "tuned", f"{_message(tuned, uniform)}, which does not keep to --max-dppl")


def _candidate(
    tuning: Tuning, allocator: Allocator, verifier: Verifier, budget: int, name: str, *, trust: float = 1.0
) -> Choice:
    """The allocation for a budget, built and evaluated. A rate that the build finds beyond the gap is given up."""
    while True:
        groups, predicted = allocator.rates(budget, trust=trust)
        recipe, rates = allocator.recipe(groups), allocator.tensors(groups)
        found = verifier.candidate(name, recipe, rates, predicted)
        beyond = [tensor for tensor in found.kept_dense if tensor not in tuning.fixed]
        if not beyond:
            return Choice(recipe, rates, predicted, found)
        for tensor in beyond:
            allocator.forbid(tensor, rates[tensor])


def _better(one: Choice, other: Choice) -> bool:
    return paired(one.candidate, other.candidate)[0] < 0


def _message(one: Choice, other: Choice) -> str:
    difference, error = paired(one.candidate, other.candidate)
    sure = "" if abs(difference) > 2 * error else ", within the noise"
    change = difference / other.candidate.kl
    return f"divergence {change:+.1%} ({difference:+.5f} ± {error:.5f} nats{sure}) from uniform rates at the same bytes"


def _report(
    tuning: Tuning, sensitivity: Sensitivity, found: Decision, evaluations: int, restored: int, started: float
) -> TuneReport:
    options, rates = tuning.options, found.rates
    groups = []
    for group in tuning.groups:
        weights = {name: tuning.weights([name]) for name in group.tensors}
        curve = sensitivity.curves[group.role]
        chosen = {rates.get(name) for name in group.tensors}
        share = sum(curve[rates[name]] * count for name, count in weights.items() if name in rates)
        kl = sensitivity.groups[group.name]
        groups.append(
            GroupReport(
                name=group.name,
                tensors=len(group.tensors),
                weights=sum(weights.values()),
                kl=kl.kl,
                kl_stderr=kl.stderr,
                rate="mixed" if len(chosen) > 1 else chosen.pop() or "dense",
                predicted_kl=kl.kl * share / sum(weights.values()),
            )
        )
    target_bytes = sum(
        bytes_at(found.recipe, tuning.source, name, rates.get(name, "dense")) for name in tuning.store.plan.targets
    )
    return TuneReport(
        recipe=options.output,
        model=options.recipe.output if options.build else None,
        decision=found.decision,
        message=found.message,
        reference=options.reference,
        additivity=sensitivity.additivity,
        accuracy=sensitivity.accuracy,
        bits_per_weight=tuning.bits(target_bytes),
        target_bytes=target_bytes,
        predicted_kl=sum(group.predicted_kl for group in groups) * sensitivity.additivity,
        groups=tuple(groups),
        checks=tuple(CheckReport(**asdict(check)) for check in sensitivity.checks),
        chosen=found.chosen,
        uniform=found.uniform,
        candidates=found.candidates,
        evaluations=evaluations,
        restored=restored,
        seconds=round(time.perf_counter() - started, 3),
    )


def _deliver(tuning: Tuning, found: Decision, verifier: Verifier | None, given: Recipe) -> None:
    """Write the recipe, with the input that was given, and move the model to its place."""
    options = tuning.options
    where = {"input": given.input} | ({"converter": given.converter} if given.converter else {})
    with atomic_output(options.output) as temporary:
        found.recipe.model_copy(update=where).to_yaml(temporary)
    if not options.build:
        return
    recipe = found.recipe.model_copy(update={"output": options.recipe.output})
    if found.chosen is None or verifier is None:
        build(recipe, progress=tuning.progress)
        return
    file = verifier.path(found.recipe)
    if not file.exists():  # it was compared in an earlier run
        verifier.build(found.recipe, found.rates)
    with atomic_output(recipe.output) as temporary:
        shutil.copyfile(file, temporary)
