"""Requests as clients send them: the fields of OpenAI's API, and some of llama.cpp's beyond them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..errors import needs_extra
from .fields import MOST, Anything, Biases, FieldError, Fields, Flag, Number, Stops, Whole, few, is_tokens
from .messages import AnyMessage
from .schema import json_grammar

with needs_extra("serve"):
    from pydantic import BeforeValidator, Field, WithJsonSchema

MESSAGES = 4096  # of a chat

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed", "stop",
)  # fmt: skip


class StreamOptions(Fields):
    include_usage: Flag = False


class ReplyBody(Fields):
    """What requests for replies have in common. The defaults are those of `llama_cpp.Llama.create_completion`."""

    model: str | None = None
    temperature: Number = Field(0.8, ge=0, le=2)
    top_p: Number = Field(0.95, ge=0, le=1)
    presence_penalty: Number = Field(0.0, ge=-2, le=2)
    frequency_penalty: Number = Field(0.0, ge=-2, le=2)
    logit_bias: Biases = Field(default_factory=dict)
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stops = Field(default_factory=list)
    stream: Flag = False
    stream_options: StreamOptions | None = None
    n: Whole = 1
    user: str | None = None
    # llama.cpp's
    top_k: Whole = Field(40, ge=0, le=MOST)
    min_p: Number = Field(0.05, ge=0, le=1)
    repeat_penalty: Number = Field(1.0, gt=0, le=10)
    # what cannot be ignored without another reply than the one asked for
    grammar: Anything = None
    suffix: str | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """Keywords of create_completion and create_chat_completion. Raises FieldError for what is not served."""
        if self.n != 1:
            raise FieldError("n", "n: one reply a request; ask again for another one")
        if self.grammar is not None:
            raise FieldError("grammar", "grammar is not supported; run llama-server under seeddelta exec")
        if self.suffix:
            raise FieldError("suffix", "suffix: text is not filled in between others; leave it out")
        if self.stream_options is not None and not self.stream:
            raise FieldError(
                "stream_options", "stream_options: these are for streams; give stream: true, or leave them out"
            )
        return {name: getattr(self, name) for name in _SAMPLING} | {"logit_bias": self.logit_bias or None}


def _prompt(value: Any) -> str | list[int]:
    one = value[0] if isinstance(value, list) and len(value) == 1 and not is_tokens(value) else value
    if isinstance(one, str) or (is_tokens(one) and one):
        return one
    raise ValueError("give one text a request, or the numbers of its tokens")


_PROMPT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]}


class CompletionBody(ReplyBody):
    """POST /v1/completions."""

    prompt: Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(_PROMPT)]
    max_tokens: Whole = Field(16, ge=0, le=MOST)
    echo: Flag = False
    logprobs: Whole | None = Field(None, ge=0, le=5)
    best_of: Whole = 1

    def options(self) -> dict[str, Any]:
        """Keywords of create_completion. Raises FieldError for what is not served."""
        if self.best_of != 1:
            raise FieldError("best_of", "best_of: one reply a request; leave it out")
        names = ("prompt", "max_tokens", "echo", "logprobs")
        return {name: getattr(self, name) for name in names} | self.sampling()


class TextFormat(Fields):
    type: Literal["text"]


class ObjectFormat(Fields):
    type: Literal["json_object"]
    json_schema: Anything = Field(None, alias="schema")


class NamedSchema(Fields):
    name: str | None = None
    description: str | None = None
    json_schema: Anything = Field(None, alias="schema")
    strict: Flag | None = None


class SchemaFormat(Fields):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class ChatBody(ReplyBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], few(MESSAGES)] = Field(min_length=1)
    max_tokens: Whole | None = Field(None, ge=1, le=MOST)
    max_completion_tokens: Whole | None = Field(None, ge=1, le=MOST)
    logprobs: Flag = False
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    response_format: Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    # what cannot be ignored without another reply than the one asked for
    modalities: Annotated[list[str], few(8)] | None = None
    audio: Anything = None
    web_search_options: Anything = None
    tools: Anything = None
    functions: Anything = None

    def options(self) -> dict[str, Any]:
        """Keywords of create_chat_completion. Raises FieldError for what is not served."""
        for name in ("audio", "web_search_options"):
            if getattr(self, name) is not None:
                raise FieldError(name, f"{name}: this server has text only; leave it out")
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise FieldError(name, f"{name} are not supported; run llama-server under seeddelta exec")
        if self.modalities is not None and self.modalities != ["text"]:
            raise FieldError("modalities", "modalities: this server has text only")
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs: give logprobs: true, too")
        return self.sampling() | {
            "messages": [message.plain() for message in self.messages],
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs or 0,
        }

    def reply_grammar(self) -> str | None:
        """GBNF of a reply. Raises RequestError for a schema that cannot be one."""
        asked = self.response_format
        if isinstance(asked, SchemaFormat):
            asked_schema = asked.json_schema.json_schema
        elif isinstance(asked, ObjectFormat):
            asked_schema = asked.json_schema
        else:
            return None
        return json_grammar({"type": "object"} if asked_schema is None else asked_schema)
