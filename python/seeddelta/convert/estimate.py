"""What `quantize` will take on this machine: a chunk is measured and some rows are encoded, the rest is arithmetic."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..calibrate import alignment
from ..calibrate.capture import capture
from ..calibrate.engine import RANGE, BlockEngine
from ..calibrate.groups import Group, find_groups
from ..calibrate.kept_inputs import kept_bytes
from ..calibrate.text import Windows
from ..gguf import names
from ..gguf.schema import LanesBase
from ..gguf.source import SourceModel
from ..processors import processors
from ..settings.recipe import EFFORTS
from .encode import encode_tensor
from .memory import PROCESS_BYTES, encoding_bytes, group_bytes, sums_bytes
from .plan import Plan
from .recipe import Recipe, parse_executor

_ROWS = 256  # of the first matrix that are encoded
_RUNS = {
    "dense": 1.0,
    "sequential": 4.5,
}  # of a group a chunk: both, and the encoded stream up to each input
# Time of the search of byte lanes with feedback, over that without: once, and for every encoding of a row
_FEEDBACK, _ENCODING = 0.6, 0.8


@dataclass(frozen=True)
class Estimate:
    """Seconds, bytes of memory at the peak, and bytes of temporary files beside the output; sizes are upper bounds."""

    seconds: float
    memory: int
    disk: int

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        return (
            f"about {minutes} minute{'s' * (minutes > 1)}, at most {self.memory / 1e9:.1f} GB of memory and "
            f"{self.disk / 1e9:.1f} GB of temporary files"
        )


def estimate(recipe: Recipe, plan: Plan, windows: Windows, ram: int, calibrate: str) -> Estimate:
    """Runs one chunk through the first group of blocks, or through a model that has to be run as a whole."""
    groups = find_groups(plan.source, windows.tokens[0], recipe.threads)
    if groups is None:
        wanted, measure, states, sums = _of_whole(recipe, plan, windows, ram)
        running = 0  # llama.cpp maps the model
    else:
        wanted, measure, states, sums = _of_blocks(recipe, plan, windows, groups, ram)
        measure *= _RUNS[calibrate]
        running = group_bytes(plan.source, groups[0])
    weights = sum(description.weights for description in plan.targets.values())
    largest = max((encoding_bytes(plan, name) for name in plan.targets), default=0)
    jobs = 1 if parse_executor(recipe.executor)[0] == "dask" else _jobs(recipe)  # that share this machine's memory
    memory = jobs * (PROCESS_BYTES + max(largest, running + sums))
    disk = 2 * states + _files(recipe, windows) * sums + plan.payload_bytes
    if calibrate == "sequential":  # what is encoded of a group stays, and is a second model of it
        decoded = 4 * sum(plan.targets[name].weights for name in wanted)
        sums = max((_sequential_sums(plan, name) for name in wanted), default=0)
        measuring = PROCESS_BYTES + running + decoded + min(sums, ram // 2)  # in this process alone
        memory = decoded + max(jobs * (PROCESS_BYTES + largest), measuring)
        columns = sum(plan.targets[name].shape[1] for name in wanted)
        kept = kept_bytes(windows.tokens.size, columns, states // (4 * windows.tokens.size))
        disk = 4 * states + kept + sums + plan.payload_bytes
    return Estimate(measure + weights / _encoding_speed(recipe, plan, plan.source, wanted), memory, disk)


def _files(recipe: Recipe, windows: Windows) -> int:
    """Files of a group's sums that are there at a time: the total, and ranges that wait to be added; or its covariances
    as a whole, which are twice as large."""
    return 1 + max(2, min(2 * _jobs(recipe), -(-windows.chunks // RANGE)))


def _jobs(recipe: Recipe) -> int:
    kind, jobs, _ = parse_executor(recipe.executor)
    return jobs or (1 if kind == "threads" else processors())


def _sequential_sums(plan: Plan, name: str) -> int:
    n_out, n_in = plan.targets[name].shape
    return alignment.sums_bytes(n_in, n_out)


def _of_blocks(
    recipe: Recipe, plan: Plan, windows: Windows, groups: list[Group], ram: int
) -> tuple[list[str], float, int, int]:
    """Matrices of the first group, seconds to measure all groups, bytes of hidden states and of sums."""
    with tempfile.TemporaryDirectory() as folder:
        engine = BlockEngine(plan.source, windows, groups, Path(folder), threads=recipe.threads)
        wanted = [name for name in engine.matrices(groups[0]) if name in plan.targets]
        begun = time.perf_counter()
        with engine.run(groups[0], wanted, keep=False, chunks=1):
            chunk = time.perf_counter() - begun
    states = 4 * windows.tokens.size * engine.n_embd
    return wanted, chunk * windows.chunks * len(groups), states, min(sums_bytes(plan.source, wanted), ram)


def _of_whole(recipe: Recipe, plan: Plan, windows: Windows, ram: int) -> tuple[list[str], float, int, int]:
    """The same where every pass goes through the whole model, for as many matrices as the memory allows."""
    wanted = [name for name in plan.targets if names.split_name(name) is not None][:1]
    if not wanted:
        return [], 0.0, 0, 0
    begun = time.perf_counter()
    capture(
        plan.source.path, np.tile(windows.tokens[0], 2), ctx=windows.ctx, chunks=1, threads=recipe.threads,
        only=wanted, progress=False,
    )  # fmt: skip
    chunk = time.perf_counter() - begun
    sums = sums_bytes(plan.source, list(plan.targets))
    return wanted, chunk * windows.chunks * -(-sums // ram), 0, min(sums, ram)


def _encoding_speed(recipe: Recipe, plan: Plan, source: SourceModel, wanted: list[str]) -> float:
    """Weights a second: encoded once without feedback, and what is known of byte lanes with it."""
    name = next((name for name in wanted if plan.targets[name].experts is None), next(iter(plan.targets)))
    rows = source.matrix(name)[:_ROWS]
    own = plan.recipes[name].model_copy(update={"hessian": None, "effort": "fast", "threads": recipe.threads})
    begun = time.perf_counter()
    encode_tensor(name, np.ascontiguousarray(rows), source.tensors[name].type.name, own)
    target = plan.targets[name]
    several = isinstance(target.base, LanesBase) and not target.is_column
    slower = _FEEDBACK + _ENCODING * EFFORTS[recipe.effort] if several else 1.0
    return rows.size / (time.perf_counter() - begun) / slower
