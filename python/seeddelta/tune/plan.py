"""What an autotuning would do, and about how long it takes: --dry-run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..convert.jobs import forget, run_job
from ..convert.pipeline import job_of
from ..convert.plan import at_rates
from ..evaluate.perplexity import perplexity
from ..runtime.session import open_model, read_text
from .groups import Group
from .options import TuneOptions
from .search import STEPS
from .sensitivity import CHECKED, neighbors, sampled_tensors
from .tuning import Tuning


@dataclass(frozen=True)
class TunePlan:
    """Times in seconds, from one chunk and one matrix. `builds` are those at most."""

    groups: tuple[Group, ...]
    evaluations: int
    chunks: int
    measure_seconds: float
    encoded_weights: int
    encode_seconds: float
    builds: int
    verify_seconds: float

    def to_dict(self) -> dict[str, Any]:
        names = {group.name: list(group.tensors) for group in self.groups}
        return {"groups": names} | {key: value for key, value in self.__dict__.items() if key != "groups"}


def plan(options: TuneOptions) -> TunePlan:
    """Look at the model, score one chunk and encode one matrix. Writes nothing.

    Raises what `autotune` raises for its inputs.
    """
    read_text(options.text)
    with options.recipe.with_dense_input(progress=False) as recipe:
        return _plan(options.model_copy(update={"recipe": recipe}))


def _plan(options: TuneOptions) -> TunePlan:
    tuning = Tuning(options, progress=False)
    rate = _weights_a_second(tuning)
    chunk = _seconds_a_chunk(options)
    everything = tuning.weights(name for group in tuning.groups for name in group.tensors)
    samples = tuning.weights(sampled_tensors(tuning.groups).values())
    checked = sorted((tuning.weights(group.tensors) for group in tuning.groups), reverse=True)[:CHECKED]
    rates = tuning.store.rates
    encoded = everything + (len(rates) - 1) * samples + len(neighbors(options.reference, rates)) * sum(checked)
    builds = 0 if not options.verify_chunks else 3 if options.max_dppl is None else STEPS + 2
    scored = (1 + builds) * options.verify_chunks if builds else 0
    return TunePlan(
        groups=tuple(tuning.groups),
        evaluations=tuning.evaluations,
        chunks=options.chunks,
        measure_seconds=(1 + tuning.evaluations) * options.chunks * chunk,
        encoded_weights=encoded,
        encode_seconds=encoded / rate,
        builds=builds,
        verify_seconds=builds * everything / rate + scored * chunk,
    )


def _weights_a_second(tuning: Tuning) -> float:
    store = tuning.store
    name = min(store.plan.targets, key=lambda name: tuning.weights([name]))
    planned = at_rates(store.plan, store.recipe, {name: tuning.options.reference})
    result = run_job(job_of(store.recipe, planned, name, store.recipe.threads))
    forget()
    return tuning.weights([name]) / result.seconds


def _seconds_a_chunk(options: TuneOptions) -> float:
    llm = open_model(
        options.recipe.input, n_ctx=options.ctx, n_batch=options.ctx, threads=options.recipe.threads or None
    )
    try:
        tokens = np.zeros(2 * options.ctx, np.int32)
        seconds = []
        for _ in range(2):  # the first one reads the file
            begin = time.perf_counter()
            perplexity(llm, tokens, n_ctx=options.ctx, chunks=1)
            seconds.append(time.perf_counter() - begin)
        return 1.3 * seconds[1]  # the divergence takes about a third more
    finally:
        llm.close()
