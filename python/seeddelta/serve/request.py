"""What is asked of a served model, and its answer as it comes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .sampling import Sampler
from .text import StreamedText

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TokenScore:
    """A token with its log-probability (None for the first one of a prompt), and the likeliest tokens in its place."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """Some more text of a reply. `finish` is set in the last one."""

    text: str
    scores: tuple[TokenScore, ...] = ()
    finish: FinishReason | None = None


@dataclass(frozen=True)
class Limits:
    """When a reply ends: after `max_tokens` (None: when the context is full), or before one of the strings `stop`.

    `logprobs`: how many of the likeliest tokens to tell with each; None tells no probabilities. `scored`: whether to
    tell them of the prompt's tokens, too. `streamed`: whether the text comes as it is made, else in one piece at the
    end, which wakes its reader only once.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    scored: bool = False
    streamed: bool = True


class Generation:
    """One reply. Iterate over it, in another thread, for its pieces; the last one has a finish reason.

    Attributes:
        tokens: of the reply so far, without the one that ends it.
        prompt_scores: of the prompt's tokens, when they are asked for; all are there before the first piece.
        reused: tokens of the prompt that were in the slot's cache already.
        first_token: seconds from arrival to the first token.
    """

    def __init__(self, prompt: Sequence[int], sampler: Sampler, max_tokens: int, limits: Limits) -> None:
        self.prompt = list(prompt)
        self.arrived = time.perf_counter()
        self.started: float | None = None
        self._cancelled = threading.Event()
        self.sampler = sampler
        self.max_tokens = max_tokens
        self.logprobs = limits.logprobs
        self.scored = limits.scored and limits.logprobs is not None
        self.prompt_scores = [TokenScore(self.prompt[0], None, ())] if self.scored else []
        self.tokens: list[int] = []
        self.reused = 0
        self.first_token: float | None = None
        self.finish: FinishReason | None = None
        self._text = StreamedText(limits.stop)
        self._streamed = limits.streamed
        self._unsent: list[str] = []
        self._scores: list[TokenScore] = []
        self._pieces: queue.SimpleQueue[Piece | BaseException] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Piece]:
        while True:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            if piece.finish is not None:
                return

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop working on it soon. Can be called from any thread, more than once, also when it is done."""
        self._cancelled.set()

    def add(self, token: int, data: bytes, score: TokenScore | None) -> bool:
        """The next token and its bytes. Returns whether the reply goes on."""
        if self.first_token is None:
            self.first_token = time.perf_counter() - self.arrived
        self.tokens.append(token)
        if score is not None:
            self._scores.append(score)
        text = self._text.push(data)
        if self._text.stopped:
            self._end(text, "stop")
        elif len(self.tokens) >= self.max_tokens:
            self._end(text + self._text.finish(), "stop" if self._text.stopped else "length")
        elif text:
            self._put(text, None)
        return self.finish is None

    def end(self, reason: FinishReason) -> None:
        """No more tokens: the model ended its reply, or somebody stopped it."""
        if self.first_token is None and reason == "stop":
            self.first_token = time.perf_counter() - self.arrived
        self._end(self._text.finish(), reason)

    def fail(self, error: BaseException) -> None:
        self._pieces.put(error)

    def close(self) -> None:
        """Free what only the scheduler's thread uses."""
        self.sampler.close()

    def _end(self, text: str, reason: FinishReason) -> None:
        self.finish = reason
        self._put(text, reason)

    def _put(self, text: str, finish: FinishReason | None) -> None:
        self._unsent.append(text)
        if finish is None and not self._streamed:
            return
        text = "".join(self._unsent)
        scores, self._scores, self._unsent = tuple(self._scores), [], []
        self._pieces.put(Piece(text, scores, finish))


def token_score(token: int, logits: npt.NDArray[np.float32], most: int) -> TokenScore:
    """The token's log-probability and the `most` likeliest ones', from logits f32[n_vocab]."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    top = np.argsort(-scores)[:most]
    return TokenScore(token, float(scores[token]), tuple((int(one), float(scores[one])) for one in top))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if len(different) else n
