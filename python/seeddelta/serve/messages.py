"""Messages and tools of a chat, as OpenAI's API has them and as chat templates take them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..errors import needs_extra
from .fields import AnyObject, Fields, Flag, few

with needs_extra("serve"):
    from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

TOOLS = 128  # of a request, and calls of a message
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]+$", max_length=64)]


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


class CalledFunction(Fields):
    """A function in a call."""

    name: Name
    arguments: str = "{}"


class Call(Fields):
    """A call of a tool in a reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


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
    tool_calls: Annotated[list[Call], few(TOOLS)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        given = {"content", "refusal", "tool_calls"} & self.model_fields_set
        if not given:
            raise ValueError("an assistant's message needs content or tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        found = super().plain()
        return found if self.tool_calls else {name: value for name, value in found.items() if name != "tool_calls"}


class ToolMessage(Message):
    role: Literal["tool"]
    content: Text
    tool_call_id: str


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Fields):
    """What a model may call."""

    name: Name
    description: str | None = None
    parameters: AnyObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: Flag | None = None


class Tool(Fields):
    type: Literal["function"]
    function: Function


def _choice(value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError('give none, auto, required, or {"type": "function", "function": {"name": …}}')
    return value


_NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_NAMED_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _NAMED},
    "required": ["type", "function"],
}
ToolChoice = Annotated[
    Any,
    BeforeValidator(_choice),
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED_TOOL]}),
]
