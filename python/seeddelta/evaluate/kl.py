"""Kullback-Leibler divergence from a base model, as llama-perplexity's --kl-divergence has it.

The base runs first and its log-probabilities go to a file, position by position; the other models read that file in the
same order while they are scored. Neither side holds more than a few rows: a row is the whole vocabulary.

A file is a header and records {target: i32, top: i32, log_p: float16 or float32 [n_vocab]}. Half precision is enough
for means above about 1e-5 nats: what is read is normalised again, so a divergence is never negative.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from .scoring import Float64s, Scored

_MAGIC = b"SEEDDELTA-LOGP1\n"
_HEADER = 256  # bytes: magic, then JSON, then blanks


@dataclass(frozen=True)
class DivergenceResult:
    """Divergence KL(base ‖ model) of each scored token in nats, f64[chunks, tokens a chunk], and whether both models
    put the same token on top, bool of the same shape.
    """

    kl: Float64s
    same_top: npt.NDArray[np.bool_]

    @property
    def mean(self) -> float:
        return float(self.kl.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the mean, over tokens."""
        return float(self.kl.std(ddof=1)) / math.sqrt(self.kl.size) if self.kl.size > 1 else 0.0

    @property
    def same_top_percent(self) -> float:
        return 100 * float(self.same_top.mean())

    @property
    def same_top_stderr(self) -> float:
        """Standard error of `same_top_percent`, in percent points."""
        share = float(self.same_top.mean())
        return 100 * math.sqrt(share * (1 - share) / (self.kl.size - 1)) if self.kl.size > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON (without the single tokens)."""
        return {
            "mean": self.mean,
            "stderr": self.stderr,
            "median": float(np.median(self.kl)),
            "p99": float(np.quantile(self.kl, 0.99)),
            "max": float(self.kl.max()),
            "same_top_percent": self.same_top_percent,
            "same_top_stderr": self.same_top_stderr,
        }


def record_type(n_vocab: int, precision: Literal["f2", "f4"]) -> np.dtype[np.void]:
    """One scored position."""
    return np.dtype([("target", "<i4"), ("top", "<i4"), ("log_p", f"<{precision}", (n_vocab,))])


class BaseWriter:
    """Observer of the base model: writes its log-probabilities to `path`. Close it, or use it in a `with` block.

    `positions` is the number of rows that will come; without room for them on the disk EvaluationError says so before
    the model has run for an hour.
    """

    def __init__(
        self, path: str | os.PathLike[str], n_vocab: int, positions: int, *, precision: Literal["f2", "f4"] = "f2"
    ) -> None:
        self._path = Path(path)
        self._type = record_type(n_vocab, precision)
        needed = _HEADER + positions * self._type.itemsize
        free = shutil.disk_usage(self._path.parent).free
        if needed > free:
            raise EvaluationError(
                f"{self._path.parent}: the divergence needs {needed / 1e9:.1f} GB of disk for a while, and "
                f"{free / 1e9:.1f} GB are free; use fewer chunks, --no-kl, or another folder (TMPDIR)"
            )
        header = json.dumps({"n_vocab": n_vocab, "precision": precision}).encode()
        self._file = self._path.open("wb")
        self._file.write((_MAGIC + header).ljust(_HEADER))

    def update(self, scored: Scored) -> None:
        records = np.empty(len(scored.targets), self._type)
        records["target"] = scored.targets
        records["top"] = scored.logits.argmax(axis=1)
        np.subtract(scored.logits, scored.log_norm[:, None], out=records["log_p"], casting="same_kind")
        try:
            records.tofile(self._file)
        except OSError as error:
            raise EvaluationError(
                f"{self._path}: cannot be written ({error.strerror}); use --no-kl or another TMPDIR"
            ) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> BaseWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DivergenceObserver:
    """Observer of another model: compares it with the file of a `BaseWriter` that has seen the same text.

    `update` raises EvaluationError when the file is of another vocabulary or text, or ends too early.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file = self._path.open("rb")
        header = self._file.read(_HEADER)
        if not header.startswith(_MAGIC) or len(header) < _HEADER:
            raise EvaluationError(f"{path}: no file of log-probabilities")
        settings = json.loads(header[len(_MAGIC) :])
        self._n_vocab: int = settings["n_vocab"]
        self._type = record_type(self._n_vocab, settings["precision"])
        self._kl: list[float] = []
        self._same_top: list[npt.NDArray[np.bool_]] = []

    def update(self, scored: Scored) -> None:
        count, n_vocab = scored.logits.shape
        if n_vocab != self._n_vocab:
            raise self._mismatch(f"vocabularies of {self._n_vocab} and {n_vocab} tokens")
        records = np.fromfile(self._file, self._type, count)
        if len(records) < count:
            raise EvaluationError(f"{self._path}: the base model scored fewer positions than this one")
        if not np.array_equal(records["target"], scored.targets):
            raise self._mismatch("different tokens of the same text")
        for row, logits, log_norm in zip(records, scored.logits, scored.log_norm, strict=True):
            self._kl.append(_divergence(row["log_p"], logits, float(log_norm)))
        self._same_top.append(records["top"] == scored.logits.argmax(axis=1))

    def _mismatch(self, what: str) -> EvaluationError:
        return EvaluationError(f"the divergence of models with {what} has no meaning; leave it out with --no-kl")

    def result(self, chunks: int) -> DivergenceResult:
        self._file.close()
        kl, same = np.asarray(self._kl, dtype=np.float64), np.concatenate(self._same_top)
        return DivergenceResult(kl.reshape(chunks, -1), same.reshape(chunks, -1))


def _divergence(base: npt.NDArray[np.floating[Any]], logits: npt.NDArray[np.float32], log_norm: float) -> float:
    """Σ p · (log p - log q) of one position, in float64; p is the base, normalised again after its rounding."""
    log_p = base.astype(np.float64)
    p = np.exp(log_p)
    total = float(p.sum())
    log_p -= logits
    return float(p @ log_p) / total + log_norm - math.log(total)
