"""Calls of tools in replies, beyond what llama-cpp-python's chat formats do."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def with_calls(completion: dict[str, Any]) -> dict[str, Any]:
    """A chat completion whose text has calls as most templates teach them, `<tool_call>{"name": …, "arguments": …}
    </tool_call>`, with these as OpenAI's `tool_calls`. Any other completion is returned as it is."""
    choice = completion["choices"][0]
    text = choice["message"].get("content") or ""
    calls = [call for call in map(_call, _CALL.findall(text)) if call is not None]
    if not calls:
        return completion
    rest = _CALL.sub("", text).strip()
    message = choice["message"] | {"content": rest or None, "tool_calls": calls}
    return completion | {"choices": [choice | {"message": message, "finish_reason": "tool_calls"}]}


def as_chunks(completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A whole chat completion as the chunks of a stream."""
    choice = completion["choices"][0]
    head = {name: completion[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if "tool_calls" in delta:
        delta["tool_calls"] = [call | {"index": index} for index, call in enumerate(delta["tool_calls"])]
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        yield head | {"choices": [{"index": 0, "delta": part, "logprobs": None, "finish_reason": finish}]}


def names_once(chunks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A stream in which a call's id and name are told in its first chunk only: clients add the chunks' texts up."""
    told = False
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            delta.pop("function_call", None)
            for call in delta.get("tool_calls") or []:
                if told:
                    call.pop("id", None)
                    call.pop("type", None)
                    call["function"].pop("name", None)
                told = True
        yield chunk


def _call(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    function = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    return {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
