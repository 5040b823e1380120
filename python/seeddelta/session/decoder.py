"""Batches straight into llama_decode, with logits for the tokens that are asked for and no copy of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError

if TYPE_CHECKING:
    import llama_cpp

Tokens = npt.NDArray[np.int32]


class Decoder:
    """The context of a `llama_cpp.Llama`, fed with batches of up to `n_batch` tokens of one sequence.

    The Llama object stays usable: it is reset when the decoder is made and when tokens are forgotten. The first `keep`
    tokens of the cache stay, if there are so many.
    """

    def __init__(self, llm: llama_cpp.Llama, *, keep: int = 0) -> None:
        from llama_cpp import _internals, llama_cpp

        self._api = llama_cpp
        self._llm = llm
        self.n_ctx: int = llm.n_ctx()
        self.n_vocab: int = llm.n_vocab()
        self.n_batch: int = llm.n_batch
        self.single_tokens: bool = getattr(getattr(llm, "seeddelta", None), "single_tokens", False)
        self._batch = _internals.LlamaBatch(n_tokens=self.n_batch, embd=0, n_seq_max=1)
        raw = self._batch.batch
        shape = (self.n_batch,)
        self._token: Tokens = np.ctypeslib.as_array(raw.token, shape)
        self._position: Tokens = np.ctypeslib.as_array(raw.pos, shape)
        self._wanted: npt.NDArray[np.int8] = np.ctypeslib.as_array(raw.logits, shape)
        for i in range(self.n_batch):  # all tokens are of sequence 0
            raw.n_seq_id[i] = 1
            raw.seq_id[i][0] = 0
        self.truncate(keep)

    @property
    def cached(self) -> int:
        """Tokens in the KV cache."""
        return int(self._api.llama_memory_seq_pos_max(self._api.llama_get_memory(self._llm.ctx), 0)) + 1

    def clear(self) -> None:
        """Forget all tokens (the KV cache is emptied)."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        self._llm.reset()
        memory = self._api.llama_get_memory(self._llm.ctx)
        if length == 0:
            self._api.llama_memory_clear(memory, True)
        elif not self._api.llama_memory_seq_rm(memory, 0, length, -1):
            raise EvaluationError("this model's cache cannot forget its last tokens; measure at depth 0")

    def set_threads(self, threads: int) -> None:
        """Threads for prompts and for generation from now on."""
        self._api.llama_set_n_threads(self._llm.ctx, threads, threads)

    def decode(self, tokens: Tokens, position: int, wanted: slice | None = None) -> npt.NDArray[np.float32]:
        """Run one batch of up to `n_batch` tokens that begin at `position`.

        Returns the logits f32[n, n_vocab] of the tokens `wanted` (indices into `tokens`; default: the last one), as a
        view of llama.cpp's buffer that the next call overwrites. Raises EvaluationError when llama.cpp cannot decode.
        """
        count = len(tokens)
        if not 0 < count <= self.n_batch or position + count > self.n_ctx:
            raise EvaluationError(
                f"{count} tokens at position {position} do not fit a batch of {self.n_batch}, context {self.n_ctx}"
            )
        self._token[:count] = tokens
        self._position[:count] = np.arange(position, position + count, dtype=np.int32)
        self._wanted[:count] = 0
        self._wanted[:count][slice(count - 1, count) if wanted is None else wanted] = 1
        rows = int(self._wanted[:count].sum())
        self._batch.batch.n_tokens = count
        try:
            self._llm._ctx.decode(self._batch)
        except RuntimeError as error:
            raise EvaluationError(
                f"llama.cpp could not decode {count} tokens at position {position}: {error}"
            ) from error
        self._api.llama_synchronize(self._llm.ctx)
        if not rows:
            return np.empty((0, self.n_vocab), np.float32)
        return np.ctypeslib.as_array(self._api.llama_get_logits(self._llm.ctx), (rows, self.n_vocab))
