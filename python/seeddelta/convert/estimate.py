"""What `quantize` will take on this machine: a chunk is measured and some rows are encoded, the rest is arithmetic."""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..calibrate.engine import BlockEngine
from ..calibrate.groups import groups_of
from ..calibrate.text import Windows
from ..errors import MemoryWarning, some
from ..gguf.source import SourceModel
from ..gguf.targets import computed_layers
from .encode import encode_tensor
from .memory import PROCESS_BYTES, group_bytes, sums_bytes
from .pipeline import Plan
from .recipe import Recipe

_ROWS = 256  # of the first matrix that are encoded
_COPIES = 5  # of a matrix in float32 while it is encoded: source, scaled, rotated, decoded, error
_FACTOR_BYTES = 4 + 8 + 4 + 4  # an entry: the covariance rotated, its factor in double precision, the feedback; a spare
_RUNS = {"dense": 1.0, "sequential": 6.0}  # of a group a chunk: both streams, and up to each input in turn


@dataclass(frozen=True)
class Estimate:
    """Seconds, bytes of memory at the peak, and bytes of temporary files beside the output; sizes are upper bounds."""

    seconds: float
    memory: int
    disk: int

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        return (
            f"about {minutes} minutes, at most {self.memory / 2**30:.1f} GiB of memory and "
            f"{self.disk / 2**30:.1f} GiB of temporary files"
        )


def estimate(recipe: Recipe, plan: Plan, windows: Windows, ram: int, calibrate: str) -> Estimate:
    """Of a model whose blocks can be run one at a time. Runs one chunk through the first block."""
    source = plan.source
    groups = groups_of(computed_layers(source.header) or 1, 1)
    with tempfile.TemporaryDirectory() as folder:
        engine = BlockEngine(source, windows, groups, Path(folder), threads=recipe.threads)
        wanted = [name for name in engine.matrices(groups[0]) if name in plan.targets]
        states = 4 * windows.tokens.size * engine.n_embd
        begun = time.perf_counter()
        with engine.run(groups[0], wanted, keep=False, chunks=1):
            chunk = time.perf_counter() - begun
    measure = chunk * windows.chunks * len(groups) * _RUNS[calibrate]
    weights = sum(description.weights for description in plan.targets.values())
    largest = max((_encoding_bytes(plan, name) for name in plan.targets), default=0)
    sums = min(sums_bytes(source, wanted), ram)
    memory = PROCESS_BYTES + max(largest, group_bytes(source, groups[0]) + sums)
    streams = 2 if calibrate == "sequential" else 1
    disk = 2 * streams * states + sums + plan.payload_bytes
    return Estimate(measure + weights / _encoding_speed(recipe, plan, source, wanted), memory, disk)


def warn_too_large(plan: Plan, ram: int) -> None:
    """Warn of matrices that are encoded as a whole and do not fit, as the embedding of a large vocabulary."""
    large = {name: size for name in plan.targets if (size := PROCESS_BYTES + _encoding_bytes(plan, name)) > ram}
    if large:
        most = max(large.values()) / 2**30
        warnings.warn(
            f"{plan.source.path}: to encode {some(list(large))} takes up to {most:.1f} GiB, more than --ram; "
            "give more, or leave it out with --targets",
            MemoryWarning,
            stacklevel=3,
        )


def _encoding_bytes(plan: Plan, name: str) -> int:
    description = plan.targets[name]
    n_out, n_in = description.shape  # of one of the experts
    return 4 * _COPIES * n_out * n_in + _FACTOR_BYTES * n_in * n_in


def _encoding_speed(recipe: Recipe, plan: Plan, source: SourceModel, wanted: list[str]) -> float:
    """Weights a second, without feedback."""
    name = next((name for name in wanted if plan.targets[name].experts is None), next(iter(plan.targets)))
    rows = source.matrix(name)[:_ROWS]
    own = plan.recipes[name].model_copy(update={"hessian": None, "threads": recipe.threads})
    begun = time.perf_counter()
    encode_tensor(name, np.ascontiguousarray(rows), source.tensors[name].type.name, own)
    return rows.size / (time.perf_counter() - begun)
