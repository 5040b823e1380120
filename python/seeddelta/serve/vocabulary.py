"""What the scheduler asks of a vocabulary for every token, remembered: a call of the C API for each is slow."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as native

from ..errors import OutOfMemoryError, RequestError
from ..session.long_words import tokens_of


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

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token: a text of more bytes has more than one."""
        return max(1, *(len(self.bytes_of(token)) for token in range(self.size)))

    def is_end(self, token: int) -> bool:
        return token in self._end_set

    def check(self, tokens: Collection[int], where: str) -> None:
        """Raises RequestError for a number that is no token: llama.cpp ends the process for some of them."""
        wrong = next((token for token in tokens if not 0 <= token < self.size), None)
        if wrong is not None:
            raise RequestError(
                f"{where}: {some_number(wrong)} is no token of this model, which has those from 0 to {self.size - 1}"
            )

    def tokens_of(self, data: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokens of a text. Raises RequestError for one that is too long for the memory of this process."""
        try:
            return tokens_of(self.llm, data, add_bos=add_bos, special=special)
        except OutOfMemoryError as error:
            raise RequestError("the text is too long for the memory of this server") from error

    def bytes_of(self, token: int) -> bytes:
        """The text of a token; it may be a part of a character, and is empty for a special token."""
        found = self._bytes.get(token)
        if found is None:
            # not `Llama.detokenize`, which knows tokens of up to 32 bytes only
            vocabulary, size = self.llm._model.vocab, 32
            buffer = ctypes.create_string_buffer(size)
            length = native.llama_token_to_piece(vocabulary, token, buffer, size, 0, False)
            if length < 0:
                size = -length
                buffer = ctypes.create_string_buffer(size)
                length = native.llama_token_to_piece(vocabulary, token, buffer, size, 0, False)
            found = self._bytes[token] = buffer.raw[: max(length, 0)]
        return found

    def text_of(self, token: int) -> str:
        return self.bytes_of(token).decode("utf-8", "replace")


def some_number(value: int) -> str:
    """A number of a client for a message, however long it is."""
    return str(value) if -(10**18) < value < 10**18 else "that number"
