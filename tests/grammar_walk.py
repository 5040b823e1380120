"""llama.cpp's own matcher of grammars, asked about texts, and texts that it takes by chance."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class Walker:
    """Grammars over the single bytes of a vocabulary."""

    def __init__(self, model: Path) -> None:
        from llama_cpp import Llama
        from llama_cpp import llama_cpp as native
        from seeddelta.serve.sampling import _CANDIDATE, _token_array

        self._native, self._candidate, self._token_array = native, _CANDIDATE, _token_array
        self._llm = Llama(str(model), vocab_only=True, verbose=False)
        self._end = self._llm.token_eos()
        texts = {self._llm.detokenize([token]): token for token in reversed(range(self._llm.n_vocab()))}
        self._tokens = {text[0]: token for text, token in texts.items() if len(text) == 1}
        self._bytes = {token: byte for byte, token in self._tokens.items()}

    def takes(self, grammar: str, text: str) -> bool:
        """Whether a whole text follows a grammar."""
        with self._matcher(grammar) as matcher:
            for byte in text.encode():
                token = self._tokens[byte]
                if not self._allowed(matcher, [token]):
                    return False
                self._native.llama_sampler_accept(matcher, token)
            return bool(self._allowed(matcher, [self._end]))

    def draw(self, grammar: str, draw: random.Random, most: int = 400) -> str | None:
        """A text that follows a grammar; None when it has no end within `most` bytes."""
        data = b""
        with self._matcher(grammar) as matcher:
            for _ in range(most):
                allowed = self._allowed(matcher, [*self._bytes, self._end])
                if self._end in allowed and (len(allowed) == 1 or len(data) > 40 or draw.random() < 0.2):
                    return data.decode("utf-8", "replace")
                allowed = [token for token in allowed if token != self._end]
                if not allowed:  # a byte that the vocabulary has not
                    return None
                weights = [20 if self._bytes[token] in b'"}],' else 1 for token in allowed]
                token = draw.choices(allowed, weights)[0]
                data += bytes([self._bytes[token]])
                self._native.llama_sampler_accept(matcher, token)
        return None

    def close(self) -> None:
        self._llm.close()

    @contextmanager
    def _matcher(self, grammar: str) -> Iterator[Any]:
        matcher = self._native.llama_sampler_init_grammar(self._llm._model.vocab, grammar.encode(), b"root")
        assert matcher, grammar
        yield matcher
        self._native.llama_sampler_free(matcher)

    def _allowed(self, matcher: Any, tokens: list[int]) -> list[int]:
        candidates = np.zeros(len(tokens), self._candidate)
        candidates["id"] = tokens
        array = self._token_array(candidates)
        self._native.llama_sampler_apply(matcher, ctypes.byref(array))
        return [token for token, logit in zip(tokens, candidates["logit"], strict=True) if np.isfinite(logit)]
