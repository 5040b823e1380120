"""What is checked of texts and tokens of clients before a model gets them: llama.cpp ends the process for some."""

from __future__ import annotations

from collections.abc import Sequence

from llama_cpp import llama_cpp as native

from ..errors import RequestError
from .vocabulary import Vocabulary


class Prompts:
    """What one model can read.

    Attributes:
        generates: whether it writes text. An encoder has no memory of what it read.
    """

    def __init__(self, vocabulary: Vocabulary, context_length: int) -> None:
        llm = vocabulary.llm
        self._vocabulary, self._context_length = vocabulary, context_length
        encoder = native.llama_model_has_encoder(llm.model)
        self.generates = bool(native.llama_get_memory(llm.ctx)) and not encoder

    def tokens_of(self, data: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokens of a prompt. Raises RequestError for a text that is certainly too long, without reading it."""
        least = len(data) // self._vocabulary.longest
        if least > self._context_length:
            raise self._too_long(f"at least {least}")
        return self._vocabulary.tokens_of(data, add_bos, special)

    def check(self, prompt: Sequence[int], reply: int) -> None:
        """Raises RequestError for a prompt that the model cannot read, or cannot write `reply` tokens after."""
        if not self.generates:
            raise RequestError(
                "this model writes no text: it is an encoder; llama-server under seeddelta exec serves its vectors"
            )
        if not prompt:
            raise RequestError("the prompt is empty; give some text")
        if len(prompt) + reply > self._context_length:
            raise self._too_long(str(len(prompt)))
        self._vocabulary.check(prompt, "prompt")

    def _too_long(self, count: str) -> RequestError:
        return RequestError(
            f"the prompt has {count} tokens, and the context of a request holds {self._context_length}, reply "
            "included; shorten the prompt, or serve the model with a larger --ctx",
            "context_length_exceeded",
        )
