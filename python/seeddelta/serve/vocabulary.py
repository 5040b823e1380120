"""What the scheduler asks of a vocabulary for every token, remembered: a call of the C API for each is slow."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as native

from ..errors import RequestError

T = TypeVar("T")
# llama.cpp splits texts by std::regex, which calls itself for every character of a word (or a row of blanks or signs).
_SHALLOW = 4096  # bytes that any stack has room for
_RUN = 8  # equal characters in a token from which on they are many
_FRAME = 1024  # bytes of stack for each byte of a text, more than twice of what was seen
_STACK = threading.Lock()  # around the size of stacks, which is the process's


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

    @cached_property
    def runs(self) -> dict[str, int]:
        """Characters of which a token has many and nothing else, and how many."""
        found: dict[str, int] = {}
        for token in range(self.size):
            data = self.bytes_of(token)
            if len(data) >= _RUN and data[:_RUN] == data[:1] * _RUN and data == data[:1] * len(data) and data[0] < 0x80:
                found[chr(data[0])] = max(found.get(chr(data[0]), 0), len(data))
        return found

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
        if len(data) <= _SHALLOW:
            return list(self.llm.tokenize(data, add_bos=add_bos, special=special))
        return _on_a_stack(_FRAME * len(data), lambda: list(self.llm.tokenize(data, add_bos=add_bos, special=special)))

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


def _on_a_stack(size: int, function: Callable[[], T]) -> T:
    """The result of a function that is called in a thread with a stack of at least so many bytes."""
    outcome: list[T | BaseException] = []

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # raised in the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=call, name="seeddelta-text", daemon=True)
    with _STACK:
        try:
            before = threading.stack_size((size // 4096 + 2048) * 4096)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        except (RuntimeError, ValueError) as error:  # no memory for it
            raise RequestError("the text is too long for the memory of this server") from error
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def some_number(value: int) -> str:
    """A number of a client for a message, however long it is."""
    return str(value) if -(10**18) < value < 10**18 else "that number"
