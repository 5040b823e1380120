"""Requests to a server with tiny models."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve_process import ServerProcess, running_server
from tiny_llama import write_bert, write_llama

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# It stumbles over some texts, as templates do that were not written for what comes.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + c.function.arguments }}{% endfor %}<|im_end|>\n"
    "{% if m['content'] == 'undefined' %}{{ nothing.at.all }}{% endif %}"
    "{% if m['content'] == 'type' %}{{ 1 + 'x' }}{% endif %}"
    "{% if m['content'] == 'overflow' %}{{ 'x' * (10 ** 30) }}{% endif %}"
    "{% if m['content'] == 'refused' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
TOOL = {"type": "function", "function": FUNCTION}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}


@contextmanager
def tiny_server(tokenizer_of: Path, folder: Path) -> Iterator[ServerProcess]:
    """A server of `tiny`, a llama, and `bert`, an encoder, each with a context of 256 tokens and two slots."""
    model = write_llama(folder / "tiny-requests.gguf", tokenizer_of, template=TEMPLATE)
    encoder = write_bert(folder / "tiny-requests-bert.gguf", tokenizer_of)
    models = ["-m", f"tiny={model}", "-m", f"bert={encoder}"]
    with running_server(*models, "--ctx", "256", "--parallel", "2", "--queue", "4") as server:
        yield server
        assert server.process.poll() is None, server.lines


JSON = {"Content-Type": "application/json"}


def ask(
    server: ServerProcess, path: str, body: Any, method: str = "POST", headers: dict[str, str] = JSON
) -> tuple[int, Any]:
    """Status and JSON of an answer. Bytes are sent as they are."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text)


def events(server: ServerProcess, path: str, body: dict[str, Any]) -> list[str]:
    """Lines of a stream, without its end."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    return lines[:-2]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 2} | fields


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 2} | fields


def form(schema: Any) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
