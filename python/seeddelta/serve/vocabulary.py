"""What the scheduler asks of a vocabulary for every token, remembered: a call of the C API for each is slow."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as native


class Vocabulary:
    """Tokens of one model.

    Attributes:
        size: number of tokens, the width of a row of logits.
    """

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.size = int(llm.n_vocab())
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def ends(self) -> npt.NDArray[np.intp]:
        """Tokens that end a reply."""
        vocabulary = self.llm._model.vocab
        found = [token for token in range(self.size) if native.llama_vocab_is_eog(vocabulary, token)]
        return np.array(found, dtype=np.intp)

    @cached_property
    def _end_set(self) -> frozenset[int]:
        return frozenset(self.ends.tolist())

    def is_end(self, token: int) -> bool:
        return token in self._end_set

    def bytes_of(self, token: int) -> bytes:
        """The text of a token; it may be a part of a character."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self.llm.detokenize([token])
        return found
