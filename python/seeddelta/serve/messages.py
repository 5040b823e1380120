"""Messages of a chat, as OpenAI's API has them and as chat templates take them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..errors import needs_extra
from .fields import Fields

with needs_extra("serve"):
    from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}


def _text(value: Any) -> str:
    """A text, or the parts of one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("give a text, or a list of parts of type text")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise ValueError("text only; this server reads no images, sounds or files")
        if not isinstance(part.get(kind), str):
            raise ValueError(f"a part of type {kind} needs a {kind}")
        texts.append(part[kind])
    return "".join(texts)


Text = Annotated[
    Any, BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]})
]


class Message(Fields):
    """What all messages have."""

    name: str | None = None


class SystemMessage(Message):
    role: Literal["system", "developer"]
    content: Text

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"role": "system"}  # templates know no other name


class UserMessage(Message):
    role: Literal["user"]
    content: Text


class AssistantMessage(Message):
    role: Literal["assistant"]
    content: Text = ""  # templates add it to other texts
    refusal: str | None = Field(None, exclude=True)

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if not {"content", "refusal"} & self.model_fields_set:
            raise ValueError("an assistant's message needs content")
        return self


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]
