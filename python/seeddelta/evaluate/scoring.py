"""One pass over a text in chunks; every measure of the logits is an observer of that pass.

The chunks and the tokens that are scored are those of llama-perplexity (llama.cpp, tools/perplexity/perplexity.cpp):
the text is tokenized as a whole and cut into chunks of n_ctx tokens; each chunk starts with BOS in place of its first
token when the model wants BOS; the second half of a chunk is predicted, so that every scored token has a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from ..session import bos_token, plan_chunks, require_logits
from ..session.decoder import Decoder, Tokens

if TYPE_CHECKING:
    import llama_cpp

Float64s = npt.NDArray[np.float64]
_ROWS = 16  # rows whose float64 exponentials are in memory at once: 6 MB for a vocabulary of 49k


@dataclass(frozen=True)
class Scored:
    """Some consecutive scored positions of one chunk. The arrays are valid during the call only.

    logits: f32[n, n_vocab] as llama.cpp gives them.
    log_norm: f64[n], log Σ exp(logits), so that log p = logits - log_norm.
    targets: i32[n], the tokens that follow in the text.
    """

    chunk: int
    logits: npt.NDArray[np.float32]
    log_norm: Float64s
    targets: Tokens


class NotFiniteError(EvaluationError):
    """Logits that are NaN or infinite."""


class Observer(Protocol):
    """A measure of the logits: NllObserver (perplexity.py), BaseWriter (base_file.py), DivergenceObserver (kl.py)."""

    def update(self, scored: Scored) -> None: ...


def scored_positions(n_ctx: int) -> int:
    """Scored tokens of a chunk."""
    return n_ctx - 1 - n_ctx // 2


def score(
    llm: llama_cpp.Llama,
    tokens: Tokens,
    observers: Sequence[Observer],
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    first: int = 0,
    on_chunk: Callable[[int, int], None] | None = None,
) -> int:
    """Show every scored position to the observers, in order, from the chunk `first` on. Returns the number of chunks.

    `on_chunk(done, total)` is called after each chunk. Raises EvaluationError when the text is too short, the model's
    context is smaller than n_ctx, llama.cpp cannot decode, or the logits are not finite.
    """
    total = plan_chunks(len(tokens), n_ctx, chunks)
    require_logits(llm)
    decoder = Decoder(llm)
    if decoder.n_ctx < n_ctx:
        raise EvaluationError(f"the model was opened with a context of {decoder.n_ctx}; open it with n_ctx={n_ctx}")
    bos = bos_token(llm)
    for chunk in range(first, total):
        window = tokens[chunk * n_ctx : (chunk + 1) * n_ctx].copy()
        if bos is not None:
            window[0] = bos
        decoder.clear()
        try:
            for scored in _score_chunk(decoder, chunk, window):
                for observer in observers:
                    observer.update(scored)
        except NotFiniteError as error:
            raise EvaluationError(f"{llm.model_path}: {error}") from error
        if on_chunk is not None:
            on_chunk(chunk + 1, total)
    decoder.clear()
    return total


def _score_chunk(decoder: Decoder, chunk: int, window: Tokens) -> Iterator[Scored]:
    """Positions first = n_ctx/2 … n_ctx - 2 predict their next token."""
    n_ctx = len(window)
    first = n_ctx // 2
    for begin, end in _batches(n_ctx, first, decoder):
        low, high = min(max(first, begin), end), min(end, n_ctx - 1)
        logits = decoder.decode(window[begin:end], begin, slice(low - begin, high - begin))
        for row in range(0, len(logits), _ROWS):
            part = logits[row : row + _ROWS]
            after = low + row + 1
            yield Scored(chunk, part, log_norm(part), window[after : after + len(part)])


def _batches(n_ctx: int, first: int, decoder: Decoder) -> Iterator[tuple[int, int]]:
    """Batches of a chunk. Scored positions are decoded one by one where that is what is to be measured."""
    singles = first if decoder.single_tokens else n_ctx
    for begin in range(0, singles, decoder.n_batch):
        yield begin, min(begin + decoder.n_batch, singles)
    for begin in range(singles, n_ctx):
        yield begin, begin + 1


def log_norm(logits: npt.NDArray[np.float32]) -> Float64s:
    """log Σ exp of each row, in float64: f32[n, n_vocab] → f64[n]. Raises EvaluationError when it is not finite."""
    top = logits.max(axis=1, keepdims=True)
    wide = np.subtract(logits, top, dtype=np.float64)
    np.exp(wide, out=wide)
    result: Float64s = top[:, 0] + np.log(wide.sum(axis=1))
    if not np.isfinite(result).all():
        raise NotFiniteError("the model's logits are not finite; the file is damaged or its weights overflow")
    return result
