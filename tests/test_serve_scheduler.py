"""Continuous batching: every request gets the text that it would get alone, and the slots are shared as they should."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.errors import BusyError, ConfigError, RequestError
from seeddelta.runtime import RuntimeConfig, StatePackKV
from tiny_llama import write_gemma2, write_llama

llama_cpp = pytest.importorskip("llama_cpp")

from seeddelta.serve import Generation, Limits, Sampling, Scheduler  # noqa: E402
from seeddelta.serve.text import StreamedText  # noqa: E402

GREEDY = Sampling(temperature=0)
WORDS = ("the", "history", "of", "Rome", "begins", "with", "a", "city", "and", "its", "roads")
PROMPTS = [" ".join(WORDS[i % 7 : i % 11 + 1] or WORDS) + f" {i}" for i in range(40)]


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, model_dir: Path) -> Path:
    """A tiny llama of random weights, every matrix of it SeedΔ."""
    dense = write_llama(model_dir / "tiny-serve.gguf", smollm2_quantized)
    path = model_dir / "tiny-serve.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4, targets="full"), progress=False)
    return path


def load(path: Path, parallel: int = 1, context: int = 256, **options: Any) -> Any:
    threads = {"n_threads": 2, "n_threads_batch": 2}
    settings: dict[str, Any] = {"n_batch": 32, "flash_attn": True, "verbose": False} | threads | options
    return seeddelta.load(path, parallel=parallel, n_ctx=context * parallel, **settings)


@pytest.fixture(scope="module")
def scheduler(model: Path) -> Iterator[Scheduler]:
    llm = load(model, parallel=4)
    scheduler = Scheduler(llm, chunk=8)
    yield scheduler
    scheduler.close()
    llm.close()


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Any]:
    """Text of a request alone, by llama-cpp-python's own loop."""
    llm = load(model)

    def complete(prompt: str, max_tokens: int, seed: int = 0, **options: Any) -> str:
        llm.reset()
        llm.set_seed(seed)
        tokens: list[int] = []
        for token in llm.generate(llm.tokenize(prompt.encode()), **({"temp": 0} | options)):
            if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token):
                break
            tokens.append(token)
            if len(tokens) == max_tokens:
                break
        return str(llm.detokenize(tokens).decode("utf-8", "replace"))

    yield complete
    llm.close()


def text_of(generation: Generation) -> str:
    return "".join(piece.text for piece in generation)


def ask(scheduler: Scheduler, prompt: str, max_tokens: int, **options: Any) -> Generation:
    tokens = scheduler.llm.tokenize(prompt.encode())
    return scheduler.submit(tokens, GREEDY, Limits(max_tokens=max_tokens, **options))


def wait_until_idle(scheduler: Scheduler) -> None:
    """The last piece of a reply is there a little before its slot is free."""
    end = time.monotonic() + 5
    while scheduler.active or scheduler.waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_replies_equal_those_alone(scheduler: Scheduler, alone: Any) -> None:
    before = scheduler.counters.shared_decodes
    requests = [ask(scheduler, prompt, 8 + i % 9) for i, prompt in enumerate(PROMPTS)]
    texts = [text_of(request) for request in requests]
    assert texts == [alone(prompt, 8 + i % 9) for i, prompt in enumerate(PROMPTS)]
    assert len(set(texts)) > 20
    assert scheduler.counters.shared_decodes - before > 40
    wait_until_idle(scheduler)


def test_smollm2_replies_equal_those_alone(smollm2_quantized: Path) -> None:
    prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]
    one = load(smollm2_quantized)
    expected = [one.create_completion(prompt, temperature=0, max_tokens=12)["choices"][0]["text"] for prompt in prompts]
    one.close()
    llm = load(smollm2_quantized, parallel=3)
    scheduler = Scheduler(llm)
    try:
        requests = [ask(scheduler, prompt, 12) for prompt in prompts]
        assert [text_of(request) for request in requests] == expected
        assert "Paris" in expected[0]
    finally:
        scheduler.close()
        llm.close()


def test_a_prefix_is_reused(scheduler: Scheduler, alone: Any) -> None:
    prompt = " ".join(WORDS * 4)
    first = ask(scheduler, prompt, 4)
    text = text_of(first)
    again = ask(scheduler, prompt + " then", 4)
    longer = text_of(again)
    assert again.reused >= len(first.prompt)
    assert longer == alone(prompt + " then", 4)
    repeated = ask(scheduler, prompt, 4)
    assert text_of(repeated) == text
    assert repeated.reused == len(first.prompt) - 1


def test_users_who_take_turns_keep_their_prefixes(scheduler: Scheduler, alone: Any) -> None:
    """Each has a slot of its own, although no two of them ask at once."""
    prompts = [f"{user} " + " ".join(WORDS[i:] + WORDS * 2) for i, user in enumerate(("Ann", "Bob", "Cy", "Dee"))]
    for round_ in range(2):
        for prompt in prompts:
            wait_until_idle(scheduler)
            request = ask(scheduler, prompt, 4)
            assert text_of(request) == alone(prompt, 4)
            assert round_ == 0 or request.reused == len(request.prompt) - 1


def test_nothing_is_reused_behind_a_sliding_window(smollm2_quantized: Path, tmp_path: Path) -> None:
    """Of a long text the cache has the last positions only: what they were computed with is gone."""
    path = write_gemma2(tmp_path / "window.gguf", smollm2_quantized)
    first = np.random.default_rng(0).integers(20, 500, 600).tolist()
    then = [*first[:300], *first[:20]]
    replies = []
    for prompts in ([then], [first, then]):
        llm = load(path, context=1024, swa_full=False)
        scheduler = Scheduler(llm)
        try:
            for prompt in prompts:
                request = scheduler.submit(prompt, GREEDY, Limits(max_tokens=4))
                text_of(request)
            assert request.reused == 0
            replies.append(request.tokens)
        finally:
            scheduler.close()
            llm.close()
    assert replies[0] == replies[1]


def test_samples_like_llama(scheduler: Scheduler, alone: Any) -> None:
    options: dict[str, Any] = {"top_k": 30, "repeat_penalty": 1.3, "seed": 7}
    tokens = scheduler.llm.tokenize(b"the history")
    texts = {
        text_of(scheduler.submit(tokens, Sampling(temperature=0.9, **options), Limits(max_tokens=12))) for _ in range(3)
    }
    assert len(texts) == 1
    assert texts.pop() == alone("the history", 12, temp=0.9, **options)


def test_a_grammar_holds(scheduler: Scheduler) -> None:
    tokens = scheduler.llm.tokenize(b"the answer:")
    grammar = 'root ::= "yes" | "no"'
    request = scheduler.submit(tokens, Sampling(temperature=0, grammar=grammar), Limits(max_tokens=16))
    assert text_of(request) in ("yes", "no")
    assert request.finish == "stop"
    with pytest.raises(RequestError, match="grammar"):
        scheduler.submit(tokens, Sampling(grammar="nothing ::="))
    doubling = 'root ::= "a" root "b" | "a" root "c" | "x"'  # each character doubles the ways to read the reply
    (a,) = scheduler.llm.tokenize(b"a", add_bos=False)[-1:]
    slow = scheduler.submit(tokens, Sampling(grammar=doubling, logit_bias={a: 100}), Limits(max_tokens=60))
    with pytest.raises(RequestError, match="too many ways"):
        list(slow)
    impossible = scheduler.submit(tokens, Sampling(grammar="root ::= <[4294967295]>"), Limits(max_tokens=4))
    assert text_of(impossible) == ""


def test_options_of_tokens(scheduler: Scheduler) -> None:
    tokens = scheduler.llm.tokenize(b"the")
    wanted = scheduler.llm.tokenize(b"x", add_bos=False)[0]
    biased = scheduler.submit(tokens, Sampling(temperature=0, logit_bias={wanted: 1000.0}), Limits(max_tokens=3))
    assert text_of(biased) == "xxx"
    end = scheduler.llm.token_eos()
    ending = {end: 1000.0}
    assert text_of(scheduler.submit(tokens, Sampling(temperature=0, logit_bias=ending), Limits(max_tokens=9))) == ""
    scored = scheduler.submit(tokens, GREEDY, Limits(max_tokens=4, logprobs=3))
    scores = [score for piece in scored for score in piece.scores]
    assert [score.token for score in scores] == [score.top[0][0] for score in scores] == scored.tokens
    assert all(score.logprob == score.top[0][1] < 0 and len(score.top) == 3 for score in scores)


def test_cancelling_frees_the_slot(scheduler: Scheduler) -> None:
    requests = [ask(scheduler, "the city", 200) for _ in range(6)]
    time.sleep(0.05)
    for request in requests:
        request.cancel()
    assert {list(request)[-1].finish for request in requests} == {"cancelled"}
    assert max(len(request.tokens) for request in requests) < 200
    wait_until_idle(scheduler)


def test_cancelled_before_it_has_a_slot(scheduler: Scheduler) -> None:
    """It ends at once, and never takes one."""
    requests: list[Generation] = []

    def ask_and_cancel() -> None:  # in the thread that decodes: nothing is admitted in between
        requests.extend(ask(scheduler, "the city", 2) for _ in range(6))
        for request in requests[3:]:
            request.cancel()

    scheduler.between_passes(ask_and_cancel)
    finishes = [list(request)[-1].finish for request in requests]
    assert finishes[3:] == ["cancelled"] * 3
    assert "cancelled" not in finishes[:3]
    assert [request.started is None for request in requests] == [False] * 3 + [True] * 3
    wait_until_idle(scheduler)


def test_what_cannot_be_asked(scheduler: Scheduler) -> None:
    with pytest.raises(RequestError, match=r"256 tokens.*holds 256"):
        scheduler.submit([5] * 256)
    with pytest.raises(RequestError, match="empty"):
        scheduler.submit([])
    full = scheduler.submit([5] * 250, GREEDY)
    text_of(full)
    assert (len(full.tokens), full.finish) == (6, "length")


def test_a_long_prompt_does_not_hold_up_others(scheduler: Scheduler) -> None:
    decodes = scheduler.counters.decodes
    long = scheduler.submit([5, 6, 7] * 80, GREEDY, Limits(max_tokens=2))
    short = ask(scheduler, "the", 2)
    text_of(short)
    # the long prompt takes 240 tokens of 8 a pass; the short one's share of a pass is enough for it
    assert scheduler.counters.decodes - decodes < 12
    assert long.finish is None
    text_of(long)


def test_too_many_wait(model: Path) -> None:
    llm = load(model)
    scheduler = Scheduler(llm, queue=2)
    try:
        requests = [ask(scheduler, "the", 200) for _ in range(3)]
        while scheduler.active < 1:
            time.sleep(0.001)
        with pytest.raises(BusyError, match="waiting"):
            ask(scheduler, "the", 200)
        assert scheduler.counters.rejected == 1
        scheduler.drain()
        with pytest.raises(BusyError, match="stopping"):
            ask(scheduler, "the", 2)
        assert len(list(requests[0])) > 0  # what is at work goes on
        assert requests[0].finish in ("length", "stop")
        with pytest.raises(BusyError, match="stopping"):
            list(requests[-1])
    finally:
        scheduler.close()
        llm.close()


def test_what_is_read_between_passes(model: Path) -> None:
    llm = load(model)
    scheduler = Scheduler(llm)
    request = ask(scheduler, "the", 100)
    seen = [scheduler.between_passes(llm.seeddelta.metrics)["seeddelta.calls"] for _ in range(5)]
    assert seen == sorted(seen)
    with pytest.raises(ZeroDivisionError):
        scheduler.between_passes(lambda: 1 // 0)
    text_of(request)  # it goes on
    scheduler.close()
    assert scheduler.between_passes(llm.seeddelta.metrics)["seeddelta.calls"] > seen[-1]
    llm.close()


def test_many_threads_ask(scheduler: Scheduler, alone: Any) -> None:
    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(lambda prompt: text_of(ask(scheduler, prompt, 6)), PROMPTS))
    assert [text for text in texts] == [alone(prompt, 6) for prompt in PROMPTS]


def test_what_follows_one_sequence_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="one sequence"):
        load(model, parallel=2, config=RuntimeConfig(state_pack_kv=StatePackKV("exact")))
    with pytest.raises(ConfigError, match="from 1 on"):
        load(model, parallel=0)


def test_text_is_cut_at_whole_characters_and_stops() -> None:
    text = StreamedText(["END", "ENDE!"])
    data = "naïve 😀 ENx EN".encode()
    shown = "".join(text.push(data[i : i + 1]) for i in range(len(data)))
    assert shown == "naïve 😀 ENx "
    assert text.push(b"D of it") == ""
    assert text.stopped
    assert text.finish() == text.push(b"more") == ""
    torn = StreamedText()
    assert torn.push("é".encode()[:1]) == ""
    assert torn.finish() == "�"
