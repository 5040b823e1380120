"""Thousands of requests that nobody would write, to a real server: none ends it, none waits for ever, all get an answer
in OpenAI's form, and what is right in between gets its right reply."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_process import ServerProcess

pytest.importorskip("llama_cpp")
pytest.importorskip("fastapi")

from serve_requests import CHAT, HELLO, TEXT, ask, tiny_server
from serve_strategies import bodies

EVERY = 25  # requests between those whose reply is known
SECONDS = 30  # in which each is answered


@pytest.fixture(scope="module")
def server(smollm2_quantized: Path, model_dir: Path) -> Iterator[ServerProcess]:
    with tiny_server(smollm2_quantized, model_dir) as server:
        yield server


class Fuzzer:
    """A server, and what it said to requests that are right."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.statuses: Counter[tuple[str, int]] = Counter()
        _, self.api = ask(server, "/openapi.json", None, "GET")
        self._expected = self._known()

    @property
    def requests(self) -> st.SearchStrategy[tuple[str, str, bytes | None]]:
        parts = self.api["components"]["schemas"]
        found = []
        for path, methods in self.api["paths"].items():
            for method, one in methods.items():
                asked = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
                data = st.none() if asked is None else bodies(asked, parts)
                often = 10 if path in (CHAT, TEXT) else 3 if asked else 1
                found += [st.tuples(st.just(method.upper()), st.just(path), data)] * often
        return st.one_of(found)

    def send(self, method: str, path: str, data: bytes | None) -> None:
        connection = http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=SECONDS)
        headers = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path.replace("{name}", "tiny"), data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.statuses[path, answer.status] += 1
        if answer.status != 200:
            assert answer.status in (400, 404, 405, 413, 503), text
            error = json.loads(text)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]
            assert len(error["message"]) < 2000
        elif answer.headers["Content-Type"].startswith("text/event-stream"):
            last = text.split("\n\n")[-3:]
            assert last[1:] == ["data: [DONE]", ""], text[-300:]
            assert '"server_error"' not in text, text[-600:]
        elif answer.headers["Content-Type"].startswith("application/json"):
            json.loads(text)
        if sum(self.statuses.values()) % EVERY == 0:
            assert self._known() == self._expected

    def _known(self) -> list[Any]:
        greedy = {"temperature": 0, "max_tokens": 6}
        answers = [
            ask(self.server, TEXT, {"prompt": "the city of"} | greedy),
            ask(self.server, CHAT, {"messages": HELLO} | greedy),
        ]
        assert [status for status, _ in answers] == [200, 200]
        texts, chats = (answer for _, answer in answers)
        message = chats["choices"][0]["message"]["content"]
        return [texts["choices"][0]["text"], message]


def fuzz(server: ServerProcess, count: int) -> Counter[tuple[str, int]]:
    fuzzer = Fuzzer(server)

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=count < 1000,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @given(fuzzer.requests)
    def send(request: tuple[str, str, bytes | None]) -> None:
        fuzzer.send(*request)

    send()
    assert server.process.poll() is None
    return fuzzer.statuses


def test_some_requests(server: ServerProcess) -> None:
    statuses = fuzz(server, 300)
    assert {status for _, status in statuses} >= {200, 400}


@pytest.mark.slow
def test_many_requests(server: ServerProcess) -> None:
    statuses = fuzz(server, 10_000)
    assert sum(statuses.values()) >= 10_000
    for path in (CHAT, TEXT):  # the fuzzer reaches what lies behind the checks
        assert statuses[path, 200] > 100
