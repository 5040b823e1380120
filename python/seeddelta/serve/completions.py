"""OpenAI's completion objects from a scheduler, and what llama-cpp-python's chat formats call a `Llama`."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import llama_cpp

from ..errors import RequestError, SeedDeltaError
from ..session.long_words import tokens_of
from .request import Generation, Limits, TokenScore
from .sampling import Sampling
from .scheduler import Scheduler

_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip
# what chat formats pass on and what has no meaning here: the model's end tokens stop a reply in any case
_IGNORED = {
    "stopping_criteria", "tfs_z", "typical_p", "mirostat_mode", "mirostat_tau", "mirostat_eta", "logits_processor",
}  # fmt: skip


class Completions:
    """One request: `create_completion` and `create_chat_completion` as those of `llama_cpp.Llama`, on a scheduler.

    Chat formats, tools and templates are llama-cpp-python's own; they get this object as their `Llama`.

    Args:
        scheduler: of the model.
        name: of the model in the answers.

    Attributes:
        generation: the reply, when it has begun.
        chats: whether it is one of a chat. There the token itself is told among the likeliest only if it is one.
    """

    verbose = False

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self.generation: Generation | None = None
        self.chats = False
        self._cancelled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler.llm, name)

    def cancel(self) -> None:
        """Stop the reply, whether it has begun or not."""
        self._cancelled = True
        if self.generation is not None:
            self.generation.cancel()

    def usage(self) -> dict[str, Any]:
        """Tokens of the request, in OpenAI's words."""
        assert self.generation is not None
        prompt, reply = len(self.generation.prompt), len(self.generation.tokens)
        details = {"cached_tokens": self.generation.reused}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "prompt_tokens_details": details,
        }

    def create_chat_completion(self, **options: Any) -> Any:
        """A chat completion, or its chunks, in the model's chat format, as that of `llama_cpp.Llama`.

        Raises RequestError for messages that the chat format stumbles over, and what `create_completion` raises.
        """
        self.chats = True
        try:
            return llama_cpp.Llama.create_chat_completion(self, **options)
        except SeedDeltaError:
            raise
        except Exception as error:  # templates are programs of their models' authors
            if self.generation is not None:
                raise
            raise RequestError(
                f"messages: the model's chat template cannot take them ({type(error).__name__}: {error})"
            ) from error

    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        stream: bool = False,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        model: str | None = None,
        **options: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """A completion, or its chunks. Options and objects are those of `llama_cpp.Llama.create_completion`.

        Raises RequestError and BusyError as Scheduler.submit does, before the first chunk is asked for.
        """
        sampling = {name: options.pop(name) for name in _SAMPLING if options.get(name) is not None}
        unknown = sorted(name for name, value in options.items() if value is not None and name not in _IGNORED)
        if unknown:
            raise RequestError(f"option {unknown[0]!r} is not known")
        tokens = self.tokenize(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self.generation = self._scheduler.submit(
            tokens,
            Sampling(
                grammar=getattr(grammar, "_grammar", grammar),
                logit_bias=logit_bias or {},
                **sampling,
            ),
            Limits(max_tokens, stops, logprobs, echo, stream),
        )
        if self._cancelled:
            self.generation.cancel()
        beginning = prompt if isinstance(prompt, str) else self.text_of(tokens)
        answer = _Answer(self, self._name, self.generation, beginning if echo else "")
        return answer.chunks() if stream else answer.whole()

    def tokenize(self, data: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokens of a prompt; chat formats call it, too."""
        return self._scheduler.prompts.tokens_of(data, add_bos, special)

    def text_of(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self._scheduler.vocabulary.bytes_of, tokens)).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        return self._scheduler.vocabulary.bytes_of(token)


def chat_tokens(llm: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokens of the prompt that the chat format of a `llama_cpp.Llama` makes of messages."""
    reader, asked = _Reader(llm), list(messages)
    llama_cpp.Llama.create_chat_completion(reader, messages=asked, stream=True)
    return reader.tokens


class _Reader:
    """What a chat format takes for its `Llama`: it keeps the prompt and generates nothing."""

    verbose = False

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.tokens: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def create_completion(self, prompt: str | list[int], **_: Any) -> Iterator[dict[str, Any]]:
        self.tokens = tokens_of(self._llm, prompt.encode(), special=True) if isinstance(prompt, str) else prompt
        return iter(())


class _Answer:
    """The pieces of one reply as objects of OpenAI's API. `beginning` is the prompt where that is told, too."""

    def __init__(self, completions: Completions, name: str, generation: Generation, beginning: str) -> None:
        self._completions, self._generation, self._beginning = completions, generation, beginning
        self._places = codecs.getincrementaldecoder("utf-8")("replace")
        self._place = 0  # in the text, of the next token
        self._head = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
        }

    def whole(self) -> dict[str, Any]:
        pieces = list(self._generation)
        text = self._beginning + "".join(piece.text for piece in pieces)
        scores = [*self._generation.prompt_scores, *(score for piece in pieces for score in piece.scores)]
        choice = self._choice(text, scores, pieces[-1].finish)
        return self._head | {"choices": [choice], "usage": self._completions.usage()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        try:
            began = False
            for piece in self._generation:
                if not began and (self._beginning or self._generation.prompt_scores):
                    yield self._head | {"choices": [self._choice(self._beginning, self._generation.prompt_scores)]}
                began = True
                if piece.text or piece.scores:
                    yield self._head | {"choices": [self._choice(piece.text, piece.scores)]}
                if piece.finish is not None:  # alone: llama-cpp-python's chat formats drop the text beside it
                    yield self._head | {"choices": [self._choice("", (), piece.finish)]}
        finally:
            self._generation.cancel()  # nobody reads on

    def _choice(self, text: str, scores: Sequence[TokenScore], finish: str | None = None) -> dict[str, Any]:
        # a reply that somebody ended is cut off, which OpenAI calls length
        finish = "length" if finish == "cancelled" else finish
        logprobs = None
        if self._generation.logprobs is not None and (scores or finish is None or text):
            logprobs = self._logprobs(scores)
        return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any]:
        def text(token: int) -> str:
            return self._completions.bytes_of(token).decode("utf-8", "replace")

        def told(score: TokenScore) -> dict[str, float] | None:
            if score.logprob is None:
                return None
            top = {text(token): logprob for token, logprob in score.top}
            return top if self._completions.chats else top | {text(score.token): score.logprob}

        return {
            "tokens": [text(score.token) for score in scores],
            "text_offset": [self._offset(score.token) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [told(score) for score in scores],
        }

    def _offset(self, token: int) -> int:
        """Where a token begins in the text; inside of a character: where that begins."""
        place, data = self._place, self._completions.bytes_of(token)
        text = self._places.decode(data)
        self._place += len(text)
        own = data.decode("utf-8", "replace")
        # what came before may be no character after all, and is told now
        return self._place - len(own) if text.endswith(own) and "\ufffd" not in own else place
