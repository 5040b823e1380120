"""Logits and patched files for the tests of the run time."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seeddelta
from description_tables import changed

TEXT = (
    "The history of the Roman Empire begins with the founding of the city. Over the following centuries its armies, "
    "roads and laws spread around the Mediterranean, and the language of its people became the language of science. "
    "When the capital moved to the east, the old city was left to its bishops, its ruins and a memory of itself. "
)


def load(path: Path, threads: int = 2, **options: Any) -> Any:
    """A model with logits of every position."""
    settings: dict[str, Any] = {"n_ctx": 512, "n_batch": 512, "logits_all": True, "verbose": False} | options
    return seeddelta.load(path, n_threads=threads, n_threads_batch=threads, **settings)


def load_small(path: Path, threads: int = 2, **options: Any) -> Any:
    return load(path, threads, n_ctx=128, n_batch=128, **options)


def assert_threads_change_nothing(path: Path) -> None:
    """The same logits, bit for bit, of 1, 2 and 4 threads, for a batch and token by token."""
    logits = []
    for threads in (1, 2, 4):
        llm = load_small(path, threads)
        tokens = tokens_of(llm, 33)
        logits.append(np.vstack([logits_of(llm, tokens), logits_of(llm, tokens[:3], batch=1)]))
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def tokens_of(llm: Any, count: int, text: str = TEXT) -> list[int]:
    tokens = llm.tokenize((text * (count // 40 + 1)).encode())[:count]
    assert len(tokens) == count
    return list(tokens)


def logits_of(llm: Any, tokens: Sequence[int], batch: int | None = None) -> np.ndarray[Any, Any]:
    """Logits [n_tokens, n_vocab] of a fresh context, decoded in batches."""
    llm.reset()
    batch = batch or len(tokens)
    for begin in range(0, len(tokens), batch):
        llm.eval(tokens[begin : begin + batch])
    return np.array(llm.scores[: len(tokens)])


def divergence(p: np.ndarray[Any, Any], q: np.ndarray[Any, Any]) -> float:
    """Mean Kullback-Leibler divergence of two sets of logits, in nats."""
    a, b = _log_softmax(p), _log_softmax(q)
    return float((np.exp(a) * (a - b)).sum(axis=1).mean())


def perplexity_of(logits: np.ndarray[Any, Any], tokens: Sequence[int], first: int) -> float:
    """exp of the mean negative log likelihood of tokens[first:]."""
    log_p = _log_softmax(logits[first - 1 : -1])
    return float(np.exp(-log_p[np.arange(len(log_p)), np.asarray(tokens[first:])].mean()))


def _log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def with_base_scale(source: Path, target: Path, tensor: str, scale: float) -> Path:
    """Copy of a SeedΔ file in which a tensor's base scale has another value."""
    return changed(source, target, lambda keys, arrays, table: table.put(tensor, "scale", scale))


def marked_unsafe(source: Path, target: Path, tensor: str) -> Path:
    """Copy of a SeedΔ file whose description of a tensor says unsafe."""
    return changed(source, target, lambda keys, arrays, table: table.put(tensor, "unsafe", True))


def with_nan_in(source: Path, target: Path, tensor: str) -> Path:
    """Copy of a GGUF file in which the first value of an F32 tensor is NaN."""
    from seeddelta.gguf.model_file import read_header

    shutil.copyfile(source, target)
    with target.open("r+b") as file:
        file.seek(read_header(source).tensors[tensor].offset)
        file.write(np.float32(np.nan).tobytes())
    return target
