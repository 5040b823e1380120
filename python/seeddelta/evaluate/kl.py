"""Kullback-Leibler divergence from a base model, as llama-perplexity's --kl-divergence has it.

The base runs first and its log-probabilities go to a file (base_file.py); the other models are compared with it while
they are scored. Neither side holds more than a few rows: a row is the whole vocabulary.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from .base_file import BaseFile
from .scoring import Float64s, Scored

QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    stderr: float


@dataclass(frozen=True)
class DivergenceResult:
    """A model beside the base at every scored token, arrays [chunks, tokens a chunk].

    kl: divergence KL(base ‖ model) in nats. same_top: both put the same token on top. delta_p: probability of the
    text's own token, model minus base. Standard errors are over tokens, as llama-perplexity's.
    """

    kl: Float64s
    same_top: npt.NDArray[np.bool_]
    delta_p: Float64s

    @property
    def mean(self) -> float:
        return float(self.kl.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the mean, over tokens."""
        return _mean(self.kl).stderr

    @property
    def same_top_percent(self) -> float:
        return 100 * float(self.same_top.mean())

    @property
    def same_top_stderr(self) -> float:
        """Standard error of `same_top_percent`, in percent points."""
        share = float(self.same_top.mean())
        return 100 * math.sqrt(share * (1 - share) / (self.kl.size - 1)) if self.kl.size > 1 else 0.0

    @property
    def mean_delta_p(self) -> Estimate:
        """Mean of `delta_p`, in percent points."""
        return _mean(100 * self.delta_p)

    @property
    def rms_delta_p(self) -> Estimate:
        """Root mean square of `delta_p`, in percent points; the error is that of the mean square, carried through."""
        square = _mean((100 * self.delta_p) ** 2)
        root = math.sqrt(square.value)
        return Estimate(root, 0.5 * square.stderr / root if root else 0.0)

    def quantile(self, share: float) -> Estimate:
        """Quantile of `kl`. Its standard error is half the distance of the order statistics √(n q (1 − q)) ranks away,
        which needs no assumption about the distribution."""
        ordered = np.sort(self.kl, axis=None)
        last = ordered.size - 1
        spread = math.sqrt(ordered.size * share * (1 - share))
        low, high = (ordered[round(min(max(share * last + side * spread, 0), last))] for side in (-1, 1))
        return Estimate(float(np.quantile(ordered, share)), float(high - low) / 2)

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON (without the single tokens)."""
        found = {
            "mean": self.mean,
            "stderr": self.stderr,
            "max": float(self.kl.max()),
            "same_top_percent": self.same_top_percent,
            "same_top_stderr": self.same_top_stderr,
        }
        estimates = {name: self.quantile(share) for name, share in QUANTILES.items()}
        estimates |= {"mean_delta_p": self.mean_delta_p, "rms_delta_p": self.rms_delta_p}
        for name, estimate in estimates.items():
            found |= {name: estimate.value, f"{name}_stderr": estimate.stderr}
        return found


class DivergenceObserver:
    """Observer of another model: compares it with the file of a base that has seen the same text.

    Raises EvaluationError for a file that cannot be read; `update` for one of another vocabulary or text.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.base = BaseFile(path)
        self._row = self._chunk = -1
        self._kl: list[float] = []
        self._same_top: list[bool] = []
        self._delta_p: list[float] = []

    def update(self, scored: Scored) -> None:
        n_vocab = scored.logits.shape[1]
        if n_vocab != self.base.n_vocab:
            raise self._mismatch(f"vocabularies of {self.base.n_vocab} and {n_vocab} tokens")
        if scored.chunk != self._chunk:
            self._chunk, self._row = scored.chunk, 0
        if scored.chunk >= self.base.chunks:
            raise EvaluationError(f"{self.base.path}: the base model scored fewer chunks than this one")
        here = slice(self._row, self._row + len(scored.targets))
        if not np.array_equal(self.base.targets(scored.chunk)[here], scored.targets):
            raise self._mismatch("different tokens of the same text")
        self._row = here.stop
        for row, logits, log_norm, target in zip(
            self.base.rows(scored.chunk)[here], scored.logits, scored.log_norm, scored.targets, strict=True
        ):
            codes = row["codes"][:n_vocab]
            scale = float(row["scale"])
            log_p = scale * codes + float(row["least"])
            log_q = logits - log_norm
            self._kl.append(_divergence(log_p, log_q, codes, scale))
            self._same_top.append(bool(codes.argmax() == logits.argmax()))
            self._delta_p.append(math.exp(log_q[target]) - math.exp(log_p[target]))

    def take(self) -> dict[str, Float64s]:
        """Values of the tokens since the last call: `kl`, `same_top` and `delta_p`, f64[tokens] each."""
        values = {"kl": self._kl, "same_top": self._same_top, "delta_p": self._delta_p}
        taken = {name: np.array(column, np.float64) for name, column in values.items()}
        self._kl, self._same_top, self._delta_p = [], [], []
        return taken

    def result(self) -> DivergenceResult:
        """Everything since the last `take`, whole chunks."""
        taken = {name: column.reshape(-1, len(self.base.rows(0))) for name, column in self.take().items()}
        return DivergenceResult(taken["kl"], taken["same_top"] > 0, taken["delta_p"])

    def _mismatch(self, what: str) -> EvaluationError:
        return EvaluationError(f"the divergence of models with {what} has no meaning; leave it out with --no-kl")


def _divergence(log_p: Float64s, log_q: Float64s, codes: npt.NDArray[np.uint16], scale: float) -> float:
    """Σ p · (log p - log q) over the tokens that the file tells apart (code above 0), in float64.

    The tokens left out are 16 nats below the top and hardly count. Rounding changes the sum of p by at most scale / 2;
    as far as that explains a difference of the sums of p and q it is taken away, so that equal models diverge by 0.
    """
    p = np.exp(log_p)
    known = codes > 0
    divergence = np.sum(p * (log_p - log_q), where=known)
    excess = np.sum(np.exp(log_q) - p, where=known)
    return float(divergence + min(max(excess, -scale / 2), scale / 2))


def _mean(values: Float64s) -> Estimate:
    stderr = float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0
    return Estimate(float(values.mean()), stderr)
