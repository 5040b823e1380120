"""Requests as clients get them wrong: each has its error in OpenAI's form, and the server lives on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_process import ServerProcess

pytest.importorskip("llama_cpp")
pytest.importorskip("fastapi")

from serve_requests import CHAT, FUNCTION, HELLO, TEXT, TOOL, ask, chat, form, text, tiny_server


@pytest.fixture(scope="module")
def server(smollm2_quantized: Path, model_dir: Path) -> Iterator[ServerProcess]:
    with tiny_server(smollm2_quantized, model_dir) as server:
        yield server


def refusal(server: ServerProcess, path: str, body: Any, status: int = 400, method: str = "POST") -> dict[str, Any]:
    """The error of a request that is refused."""
    found, answer = ask(server, path, body, method)
    assert found == status, answer
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    return dict(answer["error"])


def said(content: Any, **more: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": content, **more}])


REFUSED = {
    # what llama.cpp would end the process for
    "a large token of a prompt": (TEXT, text(prompt=[[99999999]]), "99999999 is no token"),
    "a negative token of a prompt": (TEXT, text(prompt=[-1]), "-1 is no token"),
    "a token beyond 64 bits": (TEXT, text(prompt=[[10**40]]), "no token.*0 to 511"),
    "tokens of a prompt": (TEXT, text(prompt=[[512]]), "512 is no token"),
    "a biased token": (TEXT, text(logit_bias={"512": 1}), "512 is no token"),
    "a biased name": (TEXT, text(logit_bias={"x": 1}), "logit_bias"),
    "a bias": (TEXT, text(logit_bias={"5": -1e30}), "logit_bias"),
    "a grammar": (TEXT, text(grammar='root ::= root "a" | "b"'), "grammar is not supported; run llama-server"),
    # bodies
    "no JSON": (TEXT, b"{", "JSON"),
    "no body": (TEXT, b"", "body"),
    "null": (TEXT, b"null", "dictionary"),
    "a list": (TEXT, b"[]", "dictionary"),
    "UTF-16": (TEXT, '{"prompt":"x"}'.encode("utf-16"), "UTF-8"),
    "no UTF-8": (TEXT, b'{"prompt":"\xff"}', "UTF-8 from byte 11"),
    "NaN": (TEXT, b'{"prompt":"x","temperature":NaN}', "NaN is no JSON"),
    "infinity": (TEXT, b'{"prompt":"x","temperature":-Infinity}', "-Infinity is no JSON"),
    "a number beyond a double": (TEXT, b'{"prompt":"x","temperature":1e999}', "too large"),
    "a number of many digits": (TEXT, b'{"prompt":"x","seed":' + b"9" * 5000 + b"}", "digits"),
    "a deep body": (TEXT, b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    "half of a pair": (TEXT, b'{"prompt":"a\\ud83d"}', "surrogate"),
    "half of a pair in a name": (TEXT, b'{"prompt":"a","\\udc00":1}', "surrogate"),
    # numbers
    "temperature": (TEXT, text(temperature=-0.1), "temperature"),
    "a high temperature": (CHAT, chat(temperature=2.1), "temperature"),
    "temperature as text": (CHAT, chat(temperature="1"), "temperature"),
    "top_p": (CHAT, chat(top_p=1.1), "top_p"),
    "presence_penalty": (CHAT, chat(presence_penalty=2.1), "presence_penalty"),
    "frequency_penalty": (TEXT, text(frequency_penalty=-2.1), "frequency_penalty"),
    "n": (CHAT, chat(n=2), "one reply"),
    "best_of": (TEXT, text(best_of=3), "best_of"),
    "logprobs": (TEXT, text(logprobs=6), "logprobs"),
    "logprobs as a flag": (TEXT, text(logprobs=True), "logprobs"),
    "top_logprobs": (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    "top_logprobs alone": (CHAT, chat(top_logprobs=2), "top_logprobs"),
    "max_tokens": (TEXT, text(max_tokens=-1), "max_tokens"),
    "max_tokens of a chat": (CHAT, chat(max_tokens=0), "max_tokens"),
    "max_completion_tokens": (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    "seed": (TEXT, text(seed=2**80), "seed"),
    "top_k": (TEXT, text(top_k=10**12), "top_k"),
    "repeat_penalty": (TEXT, text(repeat_penalty=0), "repeat_penalty"),
    "many stops": (TEXT, text(stop=["x"] * 1000), "stop"),
    "a stop that is none": (TEXT, text(stop=[1]), "stop"),
    "stream_options": (TEXT, text(stream_options={"include_usage": True}), "stream_options"),
    "stream_options as a list": (TEXT, text(stream=True, stream_options=[]), "stream_options"),
    "two prompts": (TEXT, text(prompt=["a", "b"]), "one text"),
    "no prompt": (TEXT, {"max_tokens": 2}, "prompt"),
    "an empty prompt": (TEXT, text(prompt=""), "empty"),
    "a prompt of no tokens": (TEXT, text(prompt=[]), "prompt"),
    "suffix": (TEXT, text(suffix="x"), "suffix"),
    "a large prompt": (TEXT, text(prompt="word " * 1000000), "tokens.*holds 256"),
    # messages
    "no messages": (CHAT, {}, "messages"),
    "messages": (CHAT, chat(messages=[]), "messages"),
    "a message that is a text": (CHAT, chat(messages=["x"]), "messages.0"),
    "a king": (CHAT, chat(messages=[{"role": "king", "content": "x"}]), "king"),
    "content null": (CHAT, said(None), "messages.0.user.content"),
    "no content": (CHAT, chat(messages=[{"role": "user"}]), "messages.0.user.content"),
    "content 5": (CHAT, said(5), "messages.0.user.content"),
    "a part without text": (CHAT, said([{"type": "text"}]), "needs a text"),
    "a part with null": (CHAT, said([{"type": "text", "text": None}]), "needs a text"),
    "a part that is a text": (CHAT, said(["x"]), "text only"),
    "a picture": (CHAT, said([{"type": "image_url", "image_url": {"url": "x"}}]), "text only"),
    "an empty assistant": (CHAT, chat(messages=[{"role": "assistant"}]), "messages.0.assistant: .*content"),
    "a tool's reply": (CHAT, chat(messages=[*HELLO, {"role": "tool", "content": "x"}]), "messages.1"),
    "calls alone": (CHAT, chat(messages=[{"role": "assistant", "tool_calls": []}]), "messages.0.assistant: .*content"),
    # templates
    "a template's unknown name": (CHAT, said("undefined"), "template.*UndefinedError"),
    "a template's type": (CHAT, said("type"), "template.*TypeError"),
    "a template's number": (CHAT, said("overflow"), "template.*(OverflowError|MemoryError)"),
    "a template's own words": (CHAT, said("refused"), "roles must alternate"),
    "a template in a stream": (CHAT, said("undefined") | {"stream": True}, "template.*UndefinedError"),
    # schemas and tools
    "json_schema null": (CHAT, chat(response_format={"type": "json_schema", "json_schema": None}), "json_schema"),
    "json_schema as text": (CHAT, chat(response_format={"type": "json_schema", "json_schema": "x"}), "json_schema"),
    "response_format as text": (CHAT, chat(response_format="json"), "response_format"),
    "an unknown response_format": (CHAT, chat(response_format={"type": "xml"}), "xml"),
    "a schema elsewhere": (CHAT, form({"$ref": "https://example.invalid/x.json"}), r"schema: \$ref"),
    "a schema of nothing": (CHAT, form(False), "schema: false"),
    "a schema that never ends": (CHAT, form({"$ref": "#"}), "schema"),
    "a long list": (CHAT, form({"type": "array", "minItems": 10**9}), "minItems"),
    "a large enum": (CHAT, form({"enum": [chr(i) for i in range(0x4E00, 0x5E00)]}), "schema"),
    "tools": (CHAT, chat(tools=[TOOL]), "tools are not supported; run llama-server"),
    "functions of the older API": (CHAT, chat(functions=[FUNCTION]), "functions are not supported; run llama-server"),
    "sound": (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    # an encoder
    "a completion of an encoder": (TEXT, text(model="bert"), "encoder"),
    "a chat with an encoder": (CHAT, chat(model="bert"), "encoder"),
    "a stream of an encoder": (TEXT, text(model="bert", stream=True), "encoder"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(server: ServerProcess, name: str) -> None:
    path, body, reason = REFUSED[name]
    begin = time.monotonic()
    error = refusal(server, path, body)
    assert re.search(reason, error["message"], re.DOTALL), error
    assert len(error["message"]) < 600
    assert time.monotonic() - begin < 10


def test_paths_and_methods(server: ServerProcess) -> None:
    refusal(server, "/v1/nothing", {}, 404)
    refusal(server, "/", {}, 404)
    refusal(server, TEXT, None, 405, "GET")
    refusal(server, "/v1/models", {}, 405)
    error = refusal(server, "/v1/models/gpt-4", None, 404, "GET")
    assert error["code"] == "model_not_found"
    assert ask(server, "/v1/models/tiny", None, "GET")[1]["id"] == "tiny"
    error = refusal(server, TEXT, text(model="x\0"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "model 'x\\x00' is not served; served: tiny, bert"
    assert refusal(server, CHAT, chat(n=2))["param"] == "n"
    assert refusal(server, CHAT, chat(tools=[TOOL]))["param"] == "tools"
    refusal(server, TEXT, b" " * (17 << 20), 413)


def test_a_body_is_json_whatever_it_is_called(server: ServerProcess) -> None:
    """But not one of a web page, whose browser sends a form to any server without asking it."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (form, {"Content-Type": "text/plain"}, None):
        assert ask(server, CHAT, chat(), headers=headers or {})[0] == 200
    page = {"Origin": "http://a.page"}
    status, answer = ask(server, CHAT, chat(), headers=form | page)
    assert (status, "Content-Type: application/json" in answer["error"]["message"]) == (400, True)
    assert ask(server, CHAT, chat(), headers=page | {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_a_failure_of_the_server_has_openais_form_too() -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from seeddelta.serve.failures import answer_failures

    app = FastAPI()
    answer_failures(app)

    @app.get("/fail")
    async def fail() -> None:
        raise ZeroDivisionError("secret")

    answer = TestClient(app, raise_server_exceptions=False).get("/fail")
    assert answer.status_code == 500
    assert answer.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert "secret" not in answer.text


TAKEN = {
    "NUL": (TEXT, text(prompt="a\0b")),
    "a cold temperature": (TEXT, text(temperature=1e-38)),
    "a banned vocabulary": (TEXT, text(logit_bias={str(token): -100 for token in range(512)}, logprobs=2)),
    "an empty stop": (TEXT, text(stop=["", "x"])),
    "many tokens": (TEXT, text(max_tokens=10**9)),
    "tokens": (TEXT, text(prompt=[1, 2, 3])),
    "tokens in a list": (TEXT, text(prompt=[[1, 2]])),
    "unknown fields": (CHAT, chat(foo=1, metadata={"a": "b"}, store=True, service_tier="auto", user="u")),
    "a system alone": (CHAT, chat(messages=[{"role": "system", "content": "x"}])),
    "the newer name of the limit": (CHAT, {"messages": HELLO, "max_completion_tokens": 2}),
    "a schema without a name": (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}}})),
    "no text format": (CHAT, chat(response_format={"type": "text"})),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(server: ServerProcess, name: str) -> None:
    path, body = TAKEN[name]
    status, answer = ask(server, path, body)
    assert status == 200, answer


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_null_is_absent(server: ServerProcess, path: str) -> None:
    schema = ask(server, "/openapi.json", None, "GET")[1]
    name = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
    fields = schema["components"]["schemas"][name]["properties"]
    needed = {CHAT: {"messages": HELLO}, TEXT: {"prompt": "a"}}[path]
    status, answer = ask(server, path, dict.fromkeys(fields) | needed)
    assert status == 200, answer


def test_a_long_word_in_a_prompt(smollm2_quantized: Path) -> None:
    """std::regex calls itself for each of its characters: on a usual stack 40000 of them end the process."""
    from llama_cpp import Llama
    from seeddelta.serve.vocabulary import Vocabulary

    as_gpt_4o = {"tokenizer.ggml.pre": "gpt-4o"}
    llm = Llama(str(smollm2_quantized), vocab_only=True, verbose=False, kv_overrides=as_gpt_4o)
    vocabulary = Vocabulary(llm)
    tokens = vocabulary.tokens_of(b"a" * 200_000)
    assert b"".join(map(vocabulary.bytes_of, tokens)) == b"a" * 200_000
    assert vocabulary.tokens_of(b"a city") == llm.tokenize(b"a city", special=True)
    llm.close()


@pytest.mark.parametrize(
    ("path", "begin", "item", "end"),
    [
        (CHAT, b'{"messages":[', b"{}", b"]}"),
        (TEXT, b'{"prompt":[', b"1", b"]}"),
    ],
)
def test_large_bodies_are_refused_at_once(
    server: ServerProcess, path: str, begin: bytes, item: bytes, end: bytes
) -> None:
    """Not with an error for each of a million items, while all other clients wait."""
    count = (7 << 20) // (len(item) + 1)
    started = time.monotonic()
    refusal(server, path, begin + b",".join([item] * count) + end)
    assert time.monotonic() - started < 15
