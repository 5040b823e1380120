"""Builds candidates and compares them on the held-out text."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..convert import build
from ..convert.recipe import Recipe
from ..convert.report import BuildReport
from ..evaluate.compare import evaluate
from .options import TuneOptions
from .state import State
from .store import EncodedStore

MARGIN = 1.64  # standard errors: 95% that the true value is on this side, were the tokens independent


class Candidate(BaseModel):
    """A model that was built and compared with the dense one on the held-out text.

    `bits` and `tensor_type` are its recipe's rates, `kl_chunks` is the mean divergence of each chunk in nats, `change`
    that of the perplexity in percent.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    bits: float
    tensor_type: tuple[str, ...]
    bits_per_weight: float
    target_bytes: int
    file_bytes: int
    kl: float
    kl_stderr: float
    kl_chunks: tuple[float, ...]
    ppl: float
    change: float
    change_stderr: float
    predicted_kl: float | None = None
    kept_dense: tuple[str, ...] = ()

    @property
    def change_limit(self) -> float:
        """`change` with the margin."""
        return self.change + MARGIN * self.change_stderr


def paired(one: Candidate, other: Candidate) -> tuple[float, float]:
    """Mean difference of the divergence, one minus other, and its standard error over chunks, in nats."""
    difference = np.subtract(one.kl_chunks, other.kl_chunks)
    return float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(len(difference))


class Verifier:
    """Builds models in the folder of the options, out of the store's parts, and evaluates them once."""

    def __init__(
        self, options: TuneOptions, store: EncodedStore, state: State, held_out: Path, *, progress: bool
    ) -> None:
        self._options = options
        self._store = store
        self._state = state
        self._held_out = held_out
        self._progress = progress

    def path(self, recipe: Recipe) -> Path:
        """Where the model of a recipe is built, as long as the folder is in use."""
        return self._options.folder / f"candidate-{_key(recipe)}.gguf"

    def candidate(
        self, name: str, recipe: Recipe, rates: Mapping[str, float], predicted_kl: float | None = None
    ) -> Candidate:
        """Build and evaluate. `rates` are those of the recipe, by tensor. What is in the state is not done again."""
        key = f"candidate {name} {_key(recipe)}"
        return Candidate(**self._state.once(key, lambda: self._measure(name, recipe, rates, predicted_kl)))

    def build(self, recipe: Recipe, rates: Mapping[str, float]) -> BuildReport:
        """Write the file of a candidate."""
        own = {"report_json": None, "checkpoint": None, "no_checkpoint": False, "beyond_gap": "dense"}
        changes = own | {"output": self.path(recipe)}
        recipe = recipe.model_copy(update=changes)
        assert recipe.parts_folder is not None
        self._store.offer(rates, recipe.parts_folder)
        return build(recipe, progress=False)

    def _measure(
        self, name: str, recipe: Recipe, rates: Mapping[str, float], predicted_kl: float | None
    ) -> dict[str, Any]:
        report = self.build(recipe, rates)
        found = evaluate(
            [self.path(recipe)], kl_base=self._dense(recipe), threads=recipe.threads or None, reps=0,
            resume=self._options.folder / "held-out", progress=self._progress,
        ).models[0]  # fmt: skip
        plan = self._store.plan
        others = [plan.source.tensors[name] for name in plan.targets if name not in rates]
        target_bytes = report.target_bytes_after + sum(info.nbytes for info in others)
        assert found.divergence is not None
        assert found.difference is not None
        assert found.perplexity is not None
        return Candidate(
            name=name,
            bits=recipe.bits,
            tensor_type=recipe.tensor_type,
            bits_per_weight=8 * target_bytes / sum(description.weights for description in plan.targets.values()),
            target_bytes=target_bytes,
            file_bytes=report.file_bytes,
            kl=found.divergence.mean,
            kl_stderr=found.divergence.stderr,
            kl_chunks=tuple(float(kl) for kl in found.divergence.kl.mean(axis=1)),
            ppl=found.perplexity.ppl,
            change=found.difference.percent,
            change_stderr=found.difference.percent_stderr,
            predicted_kl=predicted_kl,
            kept_dense=tuple(row.name for row in report.kept_dense),
        ).model_dump()

    def _dense(self, recipe: Recipe) -> Path:
        """The original model's log-probabilities, made when they are not there."""
        key = hashlib.sha256(self._held_out.read_bytes() + repr(self._state.identity).encode()).hexdigest()[:16]
        path = self._options.folder / f"held-out-{key}.kld"
        if not path.exists():
            unfinished = path.with_suffix(".part")
            evaluate(
                [recipe.input], text=self._held_out, n_ctx=self._options.ctx, chunks=self._options.verify_chunks,
                threads=recipe.threads or None, reps=0, save_kl_base=unfinished,
                resume=self._options.folder / "held-out", progress=self._progress,
            )  # fmt: skip
            unfinished.rename(path)
        return path


def _key(recipe: Recipe) -> str:
    """Of what decides the bytes."""
    return hashlib.sha256(json.dumps(recipe.provenance(), sort_keys=True).encode()).hexdigest()[:16]
