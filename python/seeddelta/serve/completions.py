"""OpenAI's completion objects from a scheduler, and what llama-cpp-python's chat formats call a `Llama`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp

from ..errors import RequestError
from .request import Generation, Limits, Piece
from .sampling import Sampling
from .scheduler import Scheduler

_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty", "presence_penalty",
    "mirostat_mode", "mirostat_tau", "mirostat_eta", "seed",
)  # fmt: skip
# what chat formats pass on and what has no meaning here: the model's end tokens stop a reply in any case
_IGNORED = {"stopping_criteria", "tfs_z", "logits_processor"}


class Completions:
    """One request: `create_completion` and `create_chat_completion` as those of `llama_cpp.Llama`, on a scheduler.

    Chat formats, tools and templates are llama-cpp-python's own; they get this object as their `Llama`.

    Args:
        scheduler: of the model.
        name: of the model in the answers.
        min_tokens: the reply does not end before so many tokens.
    """

    verbose = False
    create_chat_completion = llama_cpp.Llama.create_chat_completion

    def __init__(self, scheduler: Scheduler, name: str, min_tokens: int = 0) -> None:
        self._scheduler = scheduler
        self._name = name
        self._min_tokens = min_tokens
        self.generation: Generation | None = None
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

    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        stream: bool = False,
        suffix: str | None = None,
        grammar: Any = None,
        logit_bias: dict[Any, float] | None = None,
        model: str | None = None,
        **options: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """A completion, or its chunks. Options and objects are those of `llama_cpp.Llama.create_completion`.

        Raises RequestError and BusyError as Scheduler.submit does, before the first chunk is asked for.
        """
        if suffix:
            raise RequestError("suffix: text is not filled in between others; leave it out")
        sampling = {name: options.pop(name) for name in _SAMPLING if options.get(name) is not None}
        unknown = sorted(name for name, value in options.items() if value is not None and name not in _IGNORED)
        if unknown:
            raise RequestError(f"option {unknown[0]!r} is not known")
        tokens = self.tokenize(prompt.encode(), special=True) if isinstance(prompt, str) else list(prompt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self.generation = self._scheduler.submit(
            tokens,
            Sampling(
                grammar=getattr(grammar, "_grammar", grammar),
                logit_bias={int(token): float(bias) for token, bias in (logit_bias or {}).items()},
                min_tokens=self._min_tokens,
                **sampling,
            ),
            Limits(max_tokens, stops, logprobs, stream),
        )
        if self._cancelled:
            self.generation.cancel()
        answer = _Answer(self, self._name, self.generation)
        beginning = (prompt if isinstance(prompt, str) else self.detokenize(tokens).decode()) if echo else ""
        return answer.chunks(beginning) if stream else answer.whole(beginning)


class _Answer:
    """The pieces of one reply as objects of OpenAI's API."""

    def __init__(self, completions: Completions, name: str, generation: Generation) -> None:
        self._completions, self._generation = completions, generation
        self._head = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
        }

    def whole(self, beginning: str) -> dict[str, Any]:
        pieces = list(self._generation)
        text = beginning + "".join(piece.text for piece in pieces)
        scores = [score for piece in pieces for score in piece.scores]
        choice = self._choice(Piece(text, tuple(scores), pieces[-1].finish))
        return self._head | {"choices": [choice], "usage": self._completions.usage()}

    def chunks(self, beginning: str) -> Iterator[dict[str, Any]]:
        try:
            if beginning:
                yield self._head | {"choices": [self._choice(Piece(beginning))]}
            for piece in self._generation:
                if piece.text or piece.scores:
                    yield self._head | {"choices": [self._choice(Piece(piece.text, piece.scores))]}
                if piece.finish is not None:  # alone: llama-cpp-python's chat formats drop the text beside it
                    yield self._head | {"choices": [self._choice(Piece("", (), piece.finish))]}
        finally:
            self._generation.cancel()  # nobody reads on

    def _choice(self, piece: Piece) -> dict[str, Any]:
        # a reply that somebody ended is cut off, which OpenAI calls length
        finish = "length" if piece.finish == "cancelled" else piece.finish
        return {"text": piece.text, "index": 0, "logprobs": self._logprobs(piece), "finish_reason": finish}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self._generation.logprobs is None or (piece.finish and not piece.scores):
            return None

        def text(token: int) -> str:
            return str(self._completions.detokenize([token]).decode("utf-8", "replace"))

        tokens = [text(score.token) for score in piece.scores]
        return {
            "tokens": tokens,
            "text_offset": [sum(map(len, tokens[:index])) for index in range(len(tokens))],
            "token_logprobs": [score.logprob for score in piece.scores],
            "top_logprobs": [
                {text(token): logprob for token, logprob in score.top} | {text(score.token): score.logprob}
                for score in piece.scores
            ],
        }
