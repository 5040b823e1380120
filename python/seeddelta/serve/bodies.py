"""Requests as clients send them: llama-cpp-python's types, and what OpenAI's API has beyond them."""

from __future__ import annotations

import json
from typing import Any

from .._extras import needs_extra
from ..errors import RequestError

with needs_extra("serve"):
    from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar
    from llama_cpp.server.types import CreateChatCompletionRequest, CreateCompletionRequest, CreateEmbeddingRequest
    from pydantic import Field, model_validator

_NOT_SAMPLING = {
    "model", "messages", "n", "best_of", "user", "min_tokens", "logit_bias_type", "stream_options", "response_format",
    "tools", "tool_choice", "functions", "function_call", "prompt", "stream",
}  # fmt: skip


class CompletionBody(CreateCompletionRequest):  # type: ignore[misc]
    """POST /v1/completions."""

    repeat_penalty: float = Field(1.0, ge=0.0)  # as `Llama.create_completion`; a server must not alter greedy text
    stream_options: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Keywords of create_completion. Raises RequestError for what is not served."""
        _check_one(self)
        if isinstance(self.prompt, list) and len(self.prompt) != 1:
            raise RequestError("prompt: give one text a request")
        prompt = self.prompt[0] if isinstance(self.prompt, list) else self.prompt
        options: dict[str, Any] = self.model_dump(exclude=_NOT_SAMPLING)
        return {"prompt": prompt} | options


class ChatBody(CreateChatCompletionRequest):  # type: ignore[misc]
    """POST /v1/chat/completions."""

    repeat_penalty: float = Field(1.0, ge=0.0)
    stream_options: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _newer_words(cls, values: Any) -> Any:
        """What OpenAI's API calls otherwise by now."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("max_completion_tokens") is not None:
            values.setdefault("max_tokens", values["max_completion_tokens"])
        asked = values.get("response_format")
        if isinstance(asked, dict) and asked.get("type") == "json_schema":
            values["response_format"] = {"type": "json_object", "schema": asked.get("json_schema", {}).get("schema")}
        if isinstance(values.get("messages"), list):
            values["messages"] = [_plain_text(message) for message in values["messages"]]
        if values.get("tool_choice") == "required":
            tools = values.get("tools") or []
            if len(tools) != 1:
                raise ValueError("tool_choice required: name the function when there are several tools")
            values["tool_choice"] = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        return values

    def options(self) -> dict[str, Any]:
        """Keywords of create_chat_completion. Raises RequestError for what is not served."""
        _check_one(self)
        options: dict[str, Any] = self.model_dump(exclude=_NOT_SAMPLING)
        for name in ("messages", "tools", "tool_choice", "functions", "function_call"):
            options[name] = self.model_dump(include={name})[name]
        if self.response_format is not None and self.response_format["type"] == "json_object":
            options["grammar"] = _json_grammar(self.response_format.get("schema"))
        elif self.grammar is not None:
            options["grammar"] = LlamaGrammar.from_string(self.grammar)
        return options


class EmbeddingBody(CreateEmbeddingRequest):  # type: ignore[misc]
    """POST /v1/embeddings: texts, or their tokens."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: str = "float"

    def texts(self) -> list[str | list[int]]:
        """One entry a text."""
        given: Any = self.input
        alone = isinstance(given, str) or bool(given and isinstance(given[0], int))
        return [given] if alone else list(given)


def _check_one(body: Any) -> None:
    for name in ("n", "best_of"):
        if getattr(body, name, None) not in (None, 1):
            raise RequestError(f"{name}: one reply a request; ask again for another one")
    if body.logit_bias_type == "tokens":
        raise RequestError("logit_bias_type tokens: give numbers of tokens (/extras/tokenize tells them)")


def _plain_text(message: Any) -> Any:
    """A message whose content is a list of texts, as one text."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    parts = message["content"]
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise ValueError("messages: text only; this server reads no images or sounds")
    return message | {"content": "".join(part["text"] for part in parts)}


def _json_grammar(schema: Any) -> Any:
    if not schema:
        return LlamaGrammar.from_string(JSON_GBNF)
    try:
        return LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    except Exception as error:  # its converter raises whatever it stumbles over
        raise RequestError(f"response_format: the schema cannot be made a grammar ({error})") from error
