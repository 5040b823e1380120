"""Guessed tokens: greedy text stays as it is, and those that were right are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from tiny_llama import write_llama

llama_cpp = pytest.importorskip("llama_cpp")

from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # noqa: E402
from seeddelta.serve import Limits, Sampling, Scheduler  # noqa: E402
from seeddelta.serve.drafts import ModelDrafter  # noqa: E402

PROMPTS = ("the city the city the city the", "a b c d a b c d a b", "history of Rome", "Once upon a time")
THREADS = {"n_threads": 2, "n_threads_batch": 2}


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_llama(model_dir / "tiny-drafts.gguf", smollm2_quantized)
    path = model_dir / "tiny-drafts.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4, effort="fast", targets="full"), progress=False)
    return path


@pytest.fixture(scope="module")
def draft(model: Path, model_dir: Path) -> Path:
    """Two bits of the same weights: it is often right, and often not."""
    path = model_dir / "tiny-drafts-2.seeddelta.gguf"
    seeddelta.build(
        seeddelta.Recipe(input=model_dir / "tiny-drafts.gguf", output=path, bits=2, targets="full"), progress=False
    )
    return path


def load(path: Path, parallel: int = 2, **options: Any) -> Any:
    settings = {"n_ctx": 256 * parallel, "n_batch": 32, "flash_attn": True, "verbose": False} | THREADS | options
    return seeddelta.load(path, parallel=parallel, **settings)


def texts_of(scheduler: Scheduler, count: int = 40) -> tuple[list[str], list[Any]]:
    requests = [
        scheduler.submit(scheduler.llm.tokenize(prompt.encode()), Sampling(temperature=0), Limits(max_tokens=count))
        for prompt in PROMPTS
    ]
    return ["".join(piece.text for piece in request) for request in requests], requests


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[list[str]]:
    llm = load(model)
    scheduler = Scheduler(llm)
    yield texts_of(scheduler)[0]
    scheduler.close()
    llm.close()


@pytest.mark.parametrize("same", [True, False])
def test_a_draft_model_changes_no_text(model: Path, draft: Path, plain: list[str], same: bool) -> None:
    llm = load(model)
    scheduler = Scheduler(llm, drafts=4, draft=load(model if same else draft))
    texts, requests = texts_of(scheduler)
    counters = scheduler.counters
    scheduler.close()
    llm.close()
    assert texts == plain
    assert 0 < counters.accepted_drafts <= counters.drafted
    assert counters.accepted_drafts == sum(request.accepted for request in requests)
    if same:  # every guess is right: a fifth of the passes, but for those that wait for the prompts
        for request in requests:  # where a text ends, the guess of its end and those behind it have no place in it
            unused = request.drafted - request.accepted
            assert unused == 0 if request.finish == "length" else unused <= 4
        assert counters.decodes < 0.35 * sum(len(request.tokens) for request in requests)
    else:
        assert counters.accepted_drafts < counters.drafted


def test_draft_models_that_do_not_fit(model: Path, smollm2_quantized: Path, model_dir: Path) -> None:
    llm = load(model)
    with pytest.raises(ConfigError, match="number of drafts"):
        Scheduler(llm, draft=llm)
    with pytest.raises(ConfigError, match="0 or more"):
        Scheduler(llm, drafts=-1)
    other = load(write_other_tokens(model_dir / "tiny-other-tokens.gguf", smollm2_quantized, llm))
    with pytest.raises(ConfigError, match="same vocabulary"):
        ModelDrafter(other, llm, 4)
    other.close()
    llm.close()


def write_other_tokens(path: Path, source: Path, llm: Any) -> Path:
    """The tiny llama with another text for one token."""
    write_llama(path, source)
    texts = (llama_cpp.llama_vocab_get_text(llm._model.vocab, token) for token in range(300, llm.n_vocab()))
    text = next(text for text in texts if len(text) > 3 and text.isalpha())
    data, size = path.read_bytes(), len(text).to_bytes(8, "little")
    assert size + text in data
    path.write_bytes(data.replace(size + text, size + b"#" * len(text), 1))
    return path


def test_lookup_of_llama_cpp_python_with_load(model: Path) -> None:
    """Its own loop, with `draft_model=`, over our weights."""

    def generate(count: int, **options: Any) -> tuple[list[int], int]:
        llm = load(model, 1, **options)
        tokens: list[int] = []
        for token in llm.generate(llm.tokenize(PROMPTS[0].encode()), temp=0):
            tokens.append(token)
            if len(tokens) == count:
                break
        used = max(one["calls"] for one in llm.seeddelta.counters().values())
        llm.close()
        return tokens, used

    alone, passes = generate(60)
    drafted, fewer = generate(60, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), logits_all=True)
    assert drafted == alone
    assert fewer < passes


@pytest.mark.parametrize("flags", [["--drafts", "4"], ["--draft", "draft"]])
def test_run_counts_accepted_tokens(
    model: Path, draft: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: str) -> tuple[str, dict[str, Any]]:
        metrics = tmp_path / "metrics.json"
        ask = ["run", "-m", str(model), "-p", PROMPTS[0], "-n", "48", "-t", "2", "--json", str(metrics)]
        assert main([*ask, *more]) == 0
        return capsys.readouterr().out, json.loads(metrics.read_text())

    alone, none = run()
    drafted, counted = run(*(str(draft) if flag == "draft" else flag for flag in flags))
    # a stream of llama-cpp-python drops bytes that are no character
    assert drafted.replace("\N{REPLACEMENT CHARACTER}", "") == alone
    assert 0 < counted["accepted_drafts"] <= counted["drafted"]
    assert "drafted" not in none
    assert counted["seeddelta.calls"] < none["seeddelta.calls"]
