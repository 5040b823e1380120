"""Replies as OpenAI's API has them: texts of schemas, log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_process import ServerProcess

pytest.importorskip("llama_cpp")
pytest.importorskip("fastapi")
openai = pytest.importorskip("openai")

from serve_requests import CHAT, TEXT, ask, chat, events, form, text, tiny_server  # noqa: E402


@pytest.fixture(scope="module")
def server(smollm2_quantized: Path, model_dir: Path) -> Iterator[ServerProcess]:
    with tiny_server(smollm2_quantized, model_dir) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("value", ['a"b', "a\nb", "a\tb", "a\\b", "😀", "]-^[", "\x7f\u2028é"])
def test_texts_of_a_schema(server: ServerProcess, value: str) -> None:
    schema = {"type": "object", "properties": {value: {"enum": [value]}}, "required": [value]}
    answer = ask(server, CHAT, form(schema) | {"max_tokens": 100})[1]
    assert json.loads(answer["choices"][0]["message"]["content"]) == {value: value}


def test_echo_tells_the_prompts_tokens(server: ServerProcess) -> None:
    prompt = "the naïve 😀 city"
    body = text(prompt=prompt, echo=True, logprobs=2, max_tokens=5, temperature=0)
    answer = ask(server, TEXT, body)[1]
    whole = answer["choices"][0]
    told = whole["logprobs"]
    assert len(told["tokens"]) == answer["usage"]["total_tokens"]
    assert whole["text"].startswith(prompt)
    assert len(told["tokens"]) == len(told["text_offset"]) == len(told["token_logprobs"]) > 10
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert all(-50 < score < 0 for score in told["token_logprobs"][1:])
    assert all(max(top.values()) >= score for top, score in zip(told["top_logprobs"][1:], told["token_logprobs"][1:], strict=True))  # fmt: skip  # noqa: E501
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if "\ufffd" not in token:
            assert whole["text"][offset : offset + len(token)] == token
    assert told["text_offset"] == sorted(told["text_offset"])
    # each score is that of the token after the ones before it, whether they are read together or alone
    first = text(prompt="".join(told["tokens"][:4]), logprobs=5, max_tokens=1, temperature=0)
    begun = ask(server, TEXT, first)[1]["choices"][0]
    best = max(begun["logprobs"]["top_logprobs"][0].values())
    assert max(told["top_logprobs"][4].values()) == pytest.approx(best, abs=1e-3)
    # again, now that the prompt is in the cache, and in chunks
    chunks = [json.loads(line[6:])["choices"][0] for line in events(server, TEXT, body)]
    for name in ("tokens", "text_offset"):
        assert [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"][name]] == told[name]
    streamed = [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"]["token_logprobs"]]
    assert streamed[1:] == pytest.approx(told["token_logprobs"][1:], abs=1e-4)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]


def test_places_of_tokens_that_are_no_characters(server: ServerProcess) -> None:
    for seed in range(5):
        body = text(prompt="é", echo=True, logprobs=0, max_tokens=100, temperature=2, seed=seed, top_k=0, min_p=0)
        choice = ask(server, TEXT, body)[1]["choices"][0]
        told = choice["logprobs"]
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            if "\ufffd" not in token:
                assert choice["text"][offset : offset + len(token)] == token


def test_no_tokens(server: ServerProcess) -> None:
    body = text(prompt="the city of", echo=True, logprobs=1, max_tokens=0)
    answer = ask(server, TEXT, body)[1]
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("the city of", "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in events(server, TEXT, body)) == "the city of"
    assert ask(server, TEXT, text(max_tokens=0))[1]["choices"][0]["text"] == ""


def test_logprobs_of_a_chat(server: ServerProcess) -> None:
    for asked, count in ((None, 0), (3, 3)):
        answer = ask(server, CHAT, chat(logprobs=True, top_logprobs=asked, temperature=0))[1]
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == answer["usage"]["completion_tokens"]
        assert [len(one["top_logprobs"]) for one in content] == [count] * len(content)


def test_tokens_that_are_long(server: ServerProcess, smollm2_quantized: Path) -> None:
    from llama_cpp import Llama
    from seeddelta.serve.vocabulary import Vocabulary

    llm = Llama(str(smollm2_quantized), vocab_only=True, verbose=False)
    vocabulary = Vocabulary(llm)
    long = llm.tokenize(b" " * 64, add_bos=False, special=False)
    assert b"".join(map(vocabulary.bytes_of, long)) == b" " * 64
    assert vocabulary.longest >= 32
    llm.close()
