"""Calls of tools in replies: those that the client demands, and those that the model writes of its own accord."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .schema import Json, json_grammar

if TYPE_CHECKING:
    from .messages import Tool

_BEGIN, _END = re.compile(r"<tool_call>\s*"), re.compile(r"\s*</tool_call>")


def demanded_grammar(tools: Sequence[Tool]) -> str:
    """GBNF of a reply that calls one of some tools: the arguments of the only one, or a name and arguments."""
    return json_grammar(*[Json(tool.function.parameters, *_around(tool, tools)) for tool in tools])


def demanded_call(completion: dict[str, Any], tools: Sequence[Tool]) -> dict[str, Any]:
    """A chat completion that follows `demanded_grammar`, with the call as OpenAI has it. One that was cut off has its
    arguments as far as they go."""
    choice = completion["choices"][0]
    text = choice["message"]["content"] or ""
    for tool in tools:
        before, after = _around(tool, tools)
        if text.startswith(before):
            arguments = text[len(before) :]
            if choice["finish_reason"] == "stop":
                arguments = arguments.removesuffix(after)
            return _with(completion, [_call(tool.function.name, arguments)], None)
    return completion


def demanded_chunks(chunks: Iterable[dict[str, Any]], tool: Tool) -> Iterator[dict[str, Any]]:
    """A stream of the only tool's arguments as that of a call: its id and name come once, as clients add texts up."""
    told = False
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta, finish = choice["delta"], choice["finish_reason"]
        if "content" in delta:
            arguments = delta["content"]
            call = {"function": {"arguments": arguments}} if told else _call(tool.function.name, arguments)
            delta = {"tool_calls": [call | {"index": 0}]}
            told = True
        finish = "tool_calls" if finish == "stop" else finish
        yield chunk | {"choices": [choice | {"delta": delta, "finish_reason": finish}]}


def with_calls(completion: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    """A chat completion whose text has calls as most templates teach them, `<tool_call>{"name": …, "arguments": …}
    </tool_call>`, with the first `most` of them as OpenAI's `tool_calls`. Any other completion stays as it is."""
    text = completion["choices"][0]["message"].get("content") or ""
    calls, rest, at = [], [], 0
    for begin in _BEGIN.finditer(text):
        found = _written(text, begin.end()) if begin.start() >= at else None
        if found is not None:
            call, end = found
            rest.append(text[at : begin.start()])
            calls.append(call)
            at = end
    if not calls:
        return completion
    rest.append(text[at:])
    return _with(completion, calls[:most], "".join(rest).strip() or None)


def as_chunks(completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A whole chat completion as the chunks of a stream."""
    choice = completion["choices"][0]
    head = {name: completion[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if "tool_calls" in delta:
        delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(delta["tool_calls"])]
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        logprobs = choice.get("logprobs") if finish is None else None
        yield head | {"choices": [{"index": 0, "delta": part, "logprobs": logprobs, "finish_reason": finish}]}


def _around(tool: Tool, tools: Sequence[Tool]) -> tuple[str, str]:
    if len(tools) == 1:
        return "", ""
    return f'{{"name": {json.dumps(tool.function.name)}, "arguments": ', "}"


def _with(completion: dict[str, Any], calls: list[dict[str, Any]], text: str | None) -> dict[str, Any]:
    choice = completion["choices"][0]
    finish = "tool_calls" if choice["finish_reason"] == "stop" else choice["finish_reason"]
    message = choice["message"] | {"content": text, "tool_calls": calls}
    return completion | {"choices": [choice | {"message": message, "finish_reason": finish}]}


def _written(text: str, at: int) -> tuple[dict[str, Any], int] | None:
    """A call that a model wrote at a place of its text, and the place behind it."""
    try:
        found, end = json.JSONDecoder().raw_decode(text, at)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    closed = _END.match(text, end)
    if closed is None or not isinstance(name, str):
        return None
    return _call(name, arguments if isinstance(arguments, str) else json.dumps(arguments)), closed.end()


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
