"""A real server process, driven by the `openai` client."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from serve_process import ServerProcess, running_server
from tiny_llama import write_llama

llama_cpp = pytest.importorskip("llama_cpp")
pytest.importorskip("fastapi")
openai = pytest.importorskip("openai")

KEY = "a key"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_llama(model_dir / "tiny-http.gguf", smollm2_quantized)
    path = model_dir / "tiny-http.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4, targets="full"), progress=False)
    return path


@pytest.fixture(scope="module")
def server(smollm2_quantized: Path, tiny: Path) -> Iterator[ServerProcess]:
    arguments = ["-m", f"smol={smollm2_quantized}", "-m", f"tiny={tiny}", "--api-key", KEY, "--cors", "http://a.page"]
    with running_server(*arguments, "--ctx", "256", "--parallel", "4", "--grace", "2") as server:
        yield server


def client_of(server: ServerProcess, key: str = KEY) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return client_of(server)


def get(server: ServerProcess, path: str, key: str | None = KEY) -> str:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=30) as answer:
        return str(answer.read().decode())


def metric(server: ServerProcess, name: str, model: str = "tiny") -> float:
    found = re.search(rf'^{name}{{model="{model}"[^}}]*}} (\S+)$', get(server, "/metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_models_and_health(server: ServerProcess, client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["smol", "tiny"]
    assert json.loads(get(server, "/health", key=None)) == {"status": "ok", "models": ["smol", "tiny"]}


def test_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=12)
    text = reply.choices[0].message.content
    assert "Paris" in text
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    stream = client.chat.completions.create(
        model="smol",
        messages=QUESTION,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert sum(chunk.choices[0].finish_reason is not None for chunk in chunks if chunk.choices) == 1
    assert len(chunks) > 4
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0  # the same prompt again


def test_parts_of_messages(client: Any) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    texts = {
        client.chat.completions.create(model="smol", messages=messages, temperature=0, max_completion_tokens=6)
        .choices[0].message.content
        for messages in (QUESTION, parts)
    }  # fmt: skip
    assert len(texts) == 1
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match="text only"):
        client.chat.completions.create(model="smol", messages=image)


def test_text_completion(client: Any) -> None:
    ask = {"model": "smol", "prompt": "The capital of France is", "temperature": 0}
    whole = client.completions.create(**ask, max_tokens=16, logprobs=2)
    assert "Paris" in whole.choices[0].text
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    assert "".join(whole.choices[0].logprobs.tokens) == whole.choices[0].text
    stopped = client.completions.create(**ask, max_tokens=16, stop=["ris"], echo=True)
    assert stopped.choices[0].text == "The capital of France is Pa"
    assert stopped.choices[0].finish_reason == "stop"
    streamed = client.completions.create(**ask, max_tokens=16, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_json_schema(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    ask = {"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 64}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    reply = client.chat.completions.create(**ask, response_format=form)
    value = json.loads(reply.choices[0].message.content)
    assert set(value) == {"city", "large"}
    assert isinstance(value["large"], bool)
    wrong = {"name": "x", "schema": {"$ref": "#/nowhere"}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(**ask, response_format={"type": "json_schema", "json_schema": wrong})


def test_what_is_refused(server: ServerProcess, client: Any) -> None:
    with pytest.raises(openai.AuthenticationError, match="API key"):
        client_of(server, "another").models.list()
    with pytest.raises(openai.NotFoundError, match="smol, tiny") as unknown:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    long = [{"role": "user", "content": "word " * 400}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=r"tokens.*holds 256") as refused:
            client.chat.completions.create(model="smol", messages=long, stream=stream)
        assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="one reply"):
        client.chat.completions.create(model="smol", messages=QUESTION, n=2)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smol", messages=QUESTION, temperature="hot")  # type: ignore[arg-type]


def test_pages_of_other_origins(server: ServerProcess) -> None:
    request = urllib.request.Request(server.url + "/health", headers={"Origin": "http://a.page"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "http://a.page"


def test_forty_clients_get_their_own_text(server: ServerProcess, tiny: Path) -> None:
    prompts = [f"{'the city ' * (i % 5)}number {i}" for i in range(40)]
    llm = seeddelta.load(tiny, n_ctx=256, n_batch=32, n_threads=2, n_threads_batch=2, flash_attn=True, verbose=False)
    expected = []
    for prompt in prompts:
        llm.reset()
        tokens: list[int] = []
        for token in llm.generate(llm.tokenize(prompt.encode(), special=True), temp=0):
            if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token) or len(tokens) == 24:
                break
            tokens.append(token)
        expected.append(llm.detokenize(tokens).decode("utf-8", "replace"))
    llm.close()

    def ask(number: int) -> str:
        options = {"model": "tiny", "prompt": prompts[number], "temperature": 0, "max_tokens": 24}
        client = client_of(server)
        if number % 2:
            return "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
        return str(client.completions.create(**options).choices[0].text)

    shared = metric(server, "seeddelta_shared_decodes_total")
    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(ask, range(40))) == expected
    assert metric(server, "seeddelta_shared_decodes_total") > shared
    assert metric(server, "seeddelta_model_calls") > 0
    assert metric(server, "seeddelta_slots_active") == 0
    shown = get(server, "/metrics")
    assert "seeddelta_memory_resident_bytes" in shown
    assert "# TYPE seeddelta_model_calls counter\n" in shown
    assert "# TYPE seeddelta_model_weights gauge\n" in shown
    kinds, helps = (re.findall(rf"^# {word} (\w+) \S", shown, re.MULTILINE) for word in ("TYPE", "HELP"))
    assert kinds == helps
    assert len(set(kinds)) == len(kinds)


def test_a_client_that_goes_away(server: ServerProcess, client: Any) -> None:
    ask = {"model": "smol", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 240}

    def cancelled() -> int:
        found = re.search(r'finished_total{model="smol",reason="cancelled"} (\S+)', get(server, "/metrics"))
        return int(found[1]) if found else 0

    def wait_for(count: int) -> None:
        end = time.monotonic() + 10
        while cancelled() < count:
            assert time.monotonic() < end
        assert metric(server, "seeddelta_slots_active", "smol") == 0

    before = cancelled()
    answer = client.completions.create(**ask, stream=True)
    next(iter(answer))
    answer.close()
    wait_for(before + 1)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(**ask)
    wait_for(before + 2)
    assert metric(server, "seeddelta_generated_tokens_total", "smol") > 0


def test_too_many_requests(tiny: Path) -> None:
    with running_server("-m", str(tiny), "--ctx", "256", "--parallel", "1", "--queue", "1") as server:
        client = client_of(server)

        def ask(_: int) -> int:
            try:
                client.completions.create(model="tiny-http", prompt="the", max_tokens=200, temperature=0)
            except openai.InternalServerError as error:
                return int(error.status_code)
            return 200

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))
        assert set(answers) == {200, 503}
        assert metric(server, "seeddelta_rejected_total", "tiny-http") == answers.count(503)


@pytest.mark.parametrize("grace", ["10", "0.2"])
def test_sigterm_in_the_middle_of_a_stream(smollm2_quantized: Path, grace: str) -> None:
    server = ServerProcess(["-m", f"smol={smollm2_quantized}", "--ctx", "512", "--grace", grace])
    try:
        client = client_of(server)
        ask = {"model": "smol", "prompt": "Once upon a time", "temperature": 0}
        stream = client.completions.create(**ask, max_tokens=80 if grace == "10" else 450, stream=True)
        chunks = [next(iter(stream))]
        stopper = threading.Thread(target=server.process.send_signal, args=[signal.SIGTERM])
        stopper.start()
        chunks += list(stream)  # to its end: a last chunk and [DONE]
        assert chunks[-1].choices[0].finish_reason in ("length", "stop")
        if grace == "10":
            assert len(chunks) > 40  # the reply had time to end
        else:
            assert len(chunks) < 300  # it was cut off
        assert server.process.wait(20) == 0
    finally:
        server.process.kill()


def test_an_address_that_cannot_be_had() -> None:
    from seeddelta.errors import OutputError
    from seeddelta.serve.server import listen

    with pytest.raises(OutputError, match=r"192\.0\.2\.1:0: cannot listen there .*; give an address .* as --host"):
        listen("192.0.2.1", 0)  # an address of documents
    with listen("127.0.0.1", 0) as bound:
        bound.listen()
        with pytest.raises(OutputError, match="choose another --port"):
            listen("127.0.0.1", bound.getsockname()[1])


def test_options_from_a_file(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"cors: ['*']\nmodels:\n  - path: {tiny}\n    alias: mine\n    context: 512\n"
        f"  - path: {tiny}\n    alias: other\n    runtime: {{state_pack_kv: {{mode: exact}}}}\n    parallel: 1\n"
    )
    with running_server("--config", str(config), "--parallel", "2", "--set", "context=256") as server:
        client = client_of(server)
        models = [(model.id, model.context_length) for model in client.models.list()]
        assert models == [("mine", 512), ("other", 256)]
        client.completions.create(model="mine", prompt="a b a b a b a b", max_tokens=60, temperature=0)
        client.completions.create(model="other", prompt="a b a b a b a b", max_tokens=9, temperature=0)
        assert metric(server, "seeddelta_slots", "mine") == 2
        assert metric(server, "seeddelta_slots", "other") == 1
        assert metric(server, "seeddelta_model_attention_exact", "other") > 0  # its own setting of the run time
