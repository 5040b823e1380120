"""Perplexity by llama-perplexity's rule, with the standard error, and differences between two models on one text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EvaluationError
from ..session import tokenize
from ..session.decoder import Tokens
from .scoring import Float64s, Observer, Scored, score

if TYPE_CHECKING:
    import llama_cpp


@dataclass(frozen=True)
class PerplexityResult:
    """Perplexity of a model on a text.

    `nll` has the negative log-likelihood (natural logarithm) of each scored token, f64[chunks, tokens a chunk].
    `stderr` of the perplexity is llama-perplexity's: ppl · sqrt((mean(nll²) - mean(nll)²) / (tokens - 1)).
    """

    nll: Float64s
    n_ctx: int

    @property
    def chunks(self) -> int:
        return int(self.nll.shape[0])

    @property
    def tokens_scored(self) -> int:
        return int(self.nll.size)

    @property
    def ppl(self) -> float:
        return math.exp(float(self.nll.mean()))

    @property
    def stderr(self) -> float:
        return self.ppl * _mean_stderr(self.nll)

    @property
    def chunk_nll(self) -> Float64s:
        """Mean nll of each chunk, f64[chunks]."""
        return np.asarray(self.nll.mean(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON (without the single tokens)."""
        return {
            "ppl": self.ppl,
            "stderr": self.stderr,
            "tokens_scored": self.tokens_scored,
            "chunks": self.chunks,
            "n_ctx": self.n_ctx,
            "chunk_nll": self.chunk_nll.tolist(),
        }


@dataclass(frozen=True)
class PairedDifference:
    """A model beside a base on the same tokens. `log_ratio` = ln(ppl / ppl_base), `stderr` is that of log_ratio.

    The errors of two models on one text go together, so this is far sharper than the two perplexities' own errors.
    """

    log_ratio: float
    stderr: float

    @property
    def percent(self) -> float:
        """Change of the perplexity in percent."""
        return 100 * math.expm1(self.log_ratio)

    @property
    def percent_stderr(self) -> float:
        return 100 * math.exp(self.log_ratio) * self.stderr


def _mean_stderr(values: Float64s) -> float:
    count = values.size
    variance = float((values * values).mean()) - float(values.mean()) ** 2
    return math.sqrt(max(variance, 0.0) / (count - 1)) if count > 1 else 0.0


def paired_difference(result: PerplexityResult, base: PerplexityResult) -> PairedDifference:
    """Difference of two results on the same text and context. Raises EvaluationError when they do not match."""
    if result.nll.shape != base.nll.shape or result.n_ctx != base.n_ctx:
        raise EvaluationError(
            f"results on {result.nll.shape} and {base.nll.shape} tokens cannot be compared in pairs; "
            "use models with the same tokenizer"
        )
    difference = result.nll - base.nll
    return PairedDifference(float(difference.mean()), _mean_stderr(difference))


class NllObserver:
    """Collects the negative log-likelihood of each scored token."""

    def __init__(self) -> None:
        self._parts: list[Float64s] = []

    def update(self, scored: Scored) -> None:
        rows = np.arange(len(scored.targets))
        self._parts.append(scored.log_norm - scored.logits[rows, scored.targets])

    def take(self) -> dict[str, Float64s]:
        """Values of the tokens since the last call: `nll`, f64[tokens]."""
        taken, self._parts = np.concatenate(self._parts), []
        return {"nll": taken}

    def result(self, n_ctx: int, chunks: int) -> PerplexityResult:
        return PerplexityResult(self.take()["nll"].reshape(chunks, -1), n_ctx)


def perplexity(
    llm: llama_cpp.Llama,
    text: str | bytes | Tokens,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    progress: bool = False,
    on_chunk: Callable[[int, int], None] | None = None,
    observers: Sequence[Observer] = (),
) -> PerplexityResult:
    """Perplexity of a text (or of tokens, i32[n]) in chunks of n_ctx; `chunks` limits their number (default: all).

    `llm` must have been opened with a context of n_ctx or more; its KV cache is cleared. `progress` draws a bar with
    the remaining time; `observers` see the same pass (kl.py). Raises EvaluationError (see `scoring.score`).
    """
    tokens = tokenize(llm, text) if isinstance(text, (str, bytes)) else np.asarray(text, dtype=np.int32)
    observer = NllObserver()
    if not progress:
        total = score(llm, tokens, [observer, *observers], n_ctx=n_ctx, chunks=chunks, on_chunk=on_chunk)
        return observer.result(n_ctx, total)
    from ..progress import tqdm

    with tqdm(desc="perplexity", unit="chunk") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)
            if on_chunk is not None:
                on_chunk(done, total)

        total = score(llm, tokens, [observer, *observers], n_ctx=n_ctx, chunks=chunks, on_chunk=show)
    return observer.result(n_ctx, total)
