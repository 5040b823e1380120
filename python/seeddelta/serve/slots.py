"""A slot: one sequence of the context, with the tokens that its cache holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from llama_cpp import llama_cpp as native

from .request import Generation, common_prefix, token_score
from .sampling import Row

_WORTH_KEEPING = 16  # tokens of a prompt in a slot's cache for which that slot is taken, wherever it lies


class Slot:
    """One sequence.

    Attributes:
        cached: tokens in the cache, from position 0 on.
        job: what works here now; None when the slot is free.
        todo: tokens to decode next. For a prompt that is all that is left of it; for a reply its last token.
        left_at: when the last job was done, by the monotonic clock; 0 before the first one.
    """

    def __init__(self, index: int, memory: Any) -> None:
        self.index = index
        self.cached: list[int] = []
        self.job: Generation | None = None
        self.todo: list[int] = []
        self.left_at = 0.0
        self._memory = memory

    @property
    def generating(self) -> bool:
        """Whether the prompt is behind it."""
        return self.job is not None and bool(self.job.tokens)

    @property
    def scores_prompt(self) -> bool:
        """Whether the probabilities of the tokens that are read now are asked for."""
        return self.job is not None and self.job.scored and not self.generating

    def score_prompt(self, logits: Row) -> None:
        """Scores of the tokens behind the next ones of `todo`, from the logits of these, f32[n, n_vocab]."""
        job, read = self.job, len(self.cached)
        assert job is not None
        for row, token in zip(logits, job.prompt[read + 1 :], strict=False):
            job.prompt_scores.append(token_score(token, row, job.logprobs or 0))

    def admit(self, job: Generation, reuse: bool = True) -> int:
        """Begin with a job. Returns how many tokens of its prompt the cache has already."""
        kept = 0
        if reuse:
            # the last token is decoded again: its logits are needed
            kept = min(common_prefix(self.cached, job.prompt), len(job.prompt) - 1)
        kept = self.truncate(kept)
        self.job, self.todo = job, job.prompt[kept:]
        return kept

    def truncate(self, length: int) -> int:
        """Forget all but the first tokens. Returns how many are left: 0 where the model cannot forget some only."""
        if self._memory is not None and length < len(self.cached):
            whole = native.llama_memory_seq_pos_min(self._memory, self.index) <= 0  # a sliding window has moved on
            if length == 0 or not whole or not native.llama_memory_seq_rm(self._memory, self.index, length, -1):
                native.llama_memory_seq_rm(self._memory, self.index, -1, -1)
                length = 0
        del self.cached[length:]
        return min(length, len(self.cached))

    def leave(self) -> None:
        """The job is done; its tokens stay for a prompt that begins alike."""
        if self.job is not None:
            self.job.close()
        self.job, self.todo, self.left_at = None, [], time.monotonic()


def choose_slot(slots: Sequence[Slot], prompt: Sequence[int]) -> Slot | None:
    """The free slot that has most of the prompt already, else the one left longest ago; None when none is free.

    Of the latter, those beside a working slot come first: llama.cpp decodes neighboring sequences together.
    """
    free = [slot for slot in slots if slot.job is None]
    if not free:
        return None
    best = max(free, key=lambda slot: common_prefix(slot.cached, prompt))
    if common_prefix(best.cached, prompt) >= _WORTH_KEEPING:
        return best
    working = {slot.index for slot in slots if slot.job is not None}
    beside = [slot for slot in free if {slot.index - 1, slot.index + 1} & working]
    return min(beside or free, key=lambda slot: slot.left_at)
