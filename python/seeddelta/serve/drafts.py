"""Guesses of the next tokens, which the model checks in one pass: looked up in the context, or by a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llama_cpp import _internals as internals
from llama_cpp import llama_cpp as native
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from ..errors import ConfigError
from .request import common_prefix

DRAFTS_OF_A_MODEL = 4  # tokens guessed ahead by a draft model, where nobody says


class Drafter(Protocol):
    """Guesses for the slots of a scheduler, called in its thread."""

    def guess(self, slot: int, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow a slot's prompt and reply."""

    def close(self) -> None:
        """Free what it holds."""


class LookupDrafter:
    """What followed the last two tokens where they stood before, by llama-cpp-python's prompt lookup."""

    def __init__(self, count: int) -> None:
        self._lookup = LlamaPromptLookupDecoding(num_pred_tokens=count)

    def guess(self, slot: int, tokens: Sequence[int], count: int) -> list[int]:
        return [int(one) for one in self._lookup(np.array(tokens, dtype=np.intc))[:count]]

    def close(self) -> None:
        pass


class ModelDrafter:
    """Greedy tokens of a smaller model with the same vocabulary, which has a sequence for each slot.

    Args:
        llm: the draft model, loaded with `parallel` as the model has it; closed with this.
        target: the model.

    Raises ConfigError when the vocabularies differ, or when the draft model cannot take tokens back.
    """

    def __init__(self, llm: Any, target: Any, count: int) -> None:
        _check_pair(llm, target)
        self._llm, self._count = llm, count
        self._room = llm.n_ctx() // llm.parallel
        self._memory = native.llama_get_memory(llm.ctx)
        self._batch = internals.LlamaBatch(n_tokens=llm.n_batch, embd=0, n_seq_max=1, verbose=False)
        self._cached: dict[int, list[int]] = {}

    def guess(self, slot: int, tokens: Sequence[int], count: int) -> list[int]:
        count = min(count, self._count, self._room - len(tokens))
        if count <= 0:
            return []
        cached = self._cached.get(slot, [])
        kept = min(common_prefix(cached, tokens), len(tokens) - 1)
        native.llama_memory_seq_rm(self._memory, slot, kept, -1)
        self._cached[slot] = list(tokens[:kept])
        todo = list(tokens[kept:])
        found: list[int] = []
        while len(found) < count:
            found.append(self._decode(slot, todo))
            todo = found[-1:]
        return found

    def _decode(self, slot: int, tokens: Sequence[int]) -> int:
        """Read tokens. Returns the likeliest one behind them."""
        cached = self._cached[slot]
        for begin in range(0, len(tokens), self._llm.n_batch):
            piece = list(tokens[begin : begin + self._llm.n_batch])
            self._batch.reset()
            batch = self._batch.batch
            for at, token in enumerate(piece):
                batch.token[at], batch.pos[at] = token, len(cached) + at
                batch.seq_id[at][0], batch.n_seq_id[at] = slot, 1
                batch.logits[at] = at == len(piece) - 1
            batch.n_tokens = len(piece)
            self._llm._ctx.decode(self._batch)
            cached += piece
        logits = np.ctypeslib.as_array(native.llama_get_logits(self._llm.ctx), shape=(self._llm.n_vocab(),))
        return int(logits.argmax())

    def close(self) -> None:
        self._batch.close()
        self._llm.close()


def open_draft(
    path: Path | None, count: int | None, *, n_ctx: int, threads: int | None, parallel: int = 1
) -> tuple[int, Any]:
    """How many tokens are guessed, and the draft model; None without one. Raises what `seeddelta.load` raises."""
    if path is None:
        return count or 0, None
    from ..session import open_model

    draft = open_model(path, n_ctx=n_ctx, threads=threads, parallel=parallel)
    return DRAFTS_OF_A_MODEL if count is None else count, draft


def open_drafter(llm: Any, count: int, draft: Any) -> Drafter | None:
    """Guesses for a model, `count` at a time; None for 0. Raises ConfigError for those that cannot be had."""
    if count < 0 or (count > 0 and forgets_nothing(llm)):
        raise ConfigError(
            f"drafts {count}: give 0 or more, and 0 for a model with recurrent state, which forgets nothing"
        )
    if count > 0 and (llm.seeddelta.skips or llm.seeddelta.chooses_keys):
        raise ConfigError(
            f"drafts {count}: guesses are checked several at once, and this model computes single tokens otherwise "
            "(skipping, events or chosen keys); leave one of them out"
        )
    if draft is not None:
        if count == 0:
            raise ConfigError("a draft model needs a number of drafts from 1 on")
        return ModelDrafter(draft, llm, count)
    return LookupDrafter(count) if count else None


def forgets_nothing(llm: Any) -> bool:
    """Whether a model has recurrent state, from which wrong guesses cannot be taken back."""
    return bool(native.llama_model_is_recurrent(llm.model) or native.llama_model_is_hybrid(llm.model))


def _check_pair(draft: Any, target: Any) -> None:
    if forgets_nothing(draft):
        raise ConfigError(
            f"{draft.model_path}: has recurrent state, from which guesses cannot be taken back; give a transformer"
        )
    vocabularies = draft._model.vocab, target._model.vocab
    size = target.n_vocab()
    same = draft.n_vocab() == size and all(
        native.llama_vocab_get_text(vocabularies[0], token) == native.llama_vocab_get_text(vocabularies[1], token)
        for token in range(size)
    )
    if not same:
        raise ConfigError(
            f"{draft.model_path}: has other tokens than {target.model_path}; give a draft model of the same vocabulary"
        )
