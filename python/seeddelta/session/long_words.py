"""Tokens of a text with words of any length: llama.cpp's splitting calls itself for every character of a word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import OutOfMemoryError

if TYPE_CHECKING:
    import llama_cpp

T = TypeVar("T")
_SHALLOW = 4096  # bytes of a word that any stack has room for
_FRAME = 1024  # bytes of stack for each byte of a word (or row of blanks): more than twice of what was seen
_STACK = threading.Lock()  # around the size of stacks, which is the process's


def tokens_of(llm: llama_cpp.Llama, data: bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
    """Tokens of a text in UTF-8. Raises OutOfMemoryError for a word that is too long for the memory of this process."""

    def tokenize() -> list[int]:
        return list(llm.tokenize(data, add_bos=add_bos, special=special))

    longest = longest_word(data)
    return tokenize() if longest <= _SHALLOW else _on_a_stack(_FRAME * longest, tokenize)


def longest_word(data: bytes) -> int:
    """Bytes of the longest row of blanks, or of what is none."""
    blank = np.isin(np.frombuffer(data, np.uint8), np.frombuffer(b" \t\n\r\f\v", np.uint8))
    ends = np.flatnonzero(np.diff(blank)) + 1
    return int(np.diff(np.concatenate([[0], ends, [len(data)]])).max()) if data else 0


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
            raise OutOfMemoryError("a word of the text is too long for the memory; give a text with spaces") from error
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
