"""llama.cpp's own programs with SeedΔ models, by `seeddelta exec`: they say what `seeddelta run` and `eval` say on the
same libraries."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from llama_programs import programs
from native_helpers import library
from test_runtime_lora import write_adapter
from tiny_llama import write_experts

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.slow

PROMPTS = [
    "The capital of France is", "Water boils at", "A short list of colors:", "In the year 1969", "Two plus two is",
    "The opposite of cold is", "My favourite animal is", "The largest planet is",
]  # fmt: skip
GREEDY = ("-no-cnv", "--temp", "0", "-t", "2")


@pytest.fixture(scope="module")
def folder() -> Path:
    library()
    return programs()


@pytest.fixture(scope="module")
def experts(smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_experts(model_dir / "programs-experts.gguf", smollm2_quantized, "qwen2moe")
    recipe = seeddelta.Recipe(input=dense, output=model_dir / "programs-experts.seeddelta.gguf", targets="full")
    seeddelta.build(recipe, progress=False)
    return Path(recipe.output)


def command(folder: Path, name: str, *arguments: object, options: tuple[object, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "seeddelta", "exec", *map(str, (*options, "--", folder / name, *arguments))]


def run(folder: Path, name: str, *arguments: object, options: tuple[object, ...] = ()) -> Any:
    line = command(folder, name, *arguments, options=options)
    return subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=600)


def ours(folder: Path, *arguments: object) -> str:
    """What a command of ours says on the libraries of the programs."""
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": str(folder)}
    line = [sys.executable, "-m", "seeddelta", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(text: str) -> str:
    """Without what a random model says between whole characters, which `run` leaves out."""
    return "".join(sign for sign in text if sign.isascii()).strip()


def test_text_is_that_of_run(folder: Path, smollm2_full: Path, experts: Path, tmp_path: Path) -> None:
    for model in (smollm2_full, experts):
        done = run(
            folder, "llama-completion", "-m", model, "-p", PROMPTS[0], "-n", 24, *GREEDY,
            options=("--metrics-json", tmp_path / "m.json"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        text = done.stdout.replace("[end of text]", "")
        assert plain(text) == plain(ours(folder, "run", "-m", model, "-p", PROMPTS[0], "-n", 24, "-t", 2))
        metrics = json.loads((tmp_path / "m.json").read_text())[str(model)]
        assert metrics["seeddelta.calls"] > 0
        assert metrics["seeddelta.rows"] > 0
        assert metrics["seeddelta.idle_weights"] == 0
    assert metrics["seeddelta.experts"] > 0


PACK = ("--state-pack-mlp", "ternary", "--state-pack-mlp-eps", "0.01", "--state-pack-mlp-rho", "1")


@pytest.mark.parametrize(("settings", "work"), [
    (("--kwta-k", "0.6"), "kwta.calls"), ((*PACK, "--state-pack-mlp-aggressive"), "pack.aggressive"),
])  # fmt: skip
def test_columns_of_an_ordinary_model_are_those_of_run(
    settings: tuple[str, ...], work: str, folder: Path, smollm2_quantized: Path, tmp_path: Path
) -> None:
    same_as_run(folder, smollm2_quantized, ("--columns", "f16", *settings), work, tmp_path)


def test_columns_of_a_seeddelta_model_are_refused(folder: Path, smollm2_full: Path) -> None:
    done = run(folder, "llama-completion", "-m", smollm2_full, "-p", "a", *GREEDY, options=("--columns", "f16"))
    assert done.returncode != 0
    assert f"seeddelta: error: {smollm2_full}: --columns stores an ordinary GGUF model by columns" in done.stderr


@pytest.mark.parametrize(("settings", "work"), [
    (("--kwta-k", "0.6"), "kwta.calls"), (("--event-delta-theta", "0.3", "--event-target", "both"), "event.calls"),
    (("--state-pack-mlp", "--state-pack-mlp-relative", "0.3", "--state-pack-mlp-rho", "1"), "pack.calls"),
])  # fmt: skip
def test_skipping_is_that_of_run(
    settings: tuple[str, ...], work: str, folder: Path, smollm2_f16: Path, model_dir: Path, tmp_path: Path
) -> None:
    model = model_dir / "programs-columns.seeddelta.gguf"
    if not model.exists():
        recipe = seeddelta.Recipe(input=smollm2_f16, output=model, layout="column", layers="0-1", no_checkpoint=True)
        seeddelta.build(recipe, progress=False)
    same_as_run(folder, model, settings, work, tmp_path)


def same_as_run(folder: Path, model: Path, settings: tuple[str, ...], work: str, tmp_path: Path) -> None:
    """The same text, and the same inputs left out."""
    ours_json, theirs_json = tmp_path / "ours.json", tmp_path / "theirs.json"
    arguments = ("-m", model, "-p", PROMPTS[0], "-n", 24)
    text = ours(folder, "run", *arguments, "-t", 2, "--force", *settings, "--json", ours_json)
    done = run(
        folder, "llama-completion", *arguments, *GREEDY, "--no-warmup",
        options=("--force", *settings, "--metrics-json", theirs_json),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert plain(done.stdout.replace("[end of text]", "")) == plain(text)
    expected, found = json.loads(ours_json.read_text()), json.loads(theirs_json.read_text())[str(model)]
    names = [name for name in expected if name.startswith(("kwta.", "event.", "pack.")) and "_ms_" not in name]
    assert found[work] > 0
    assert {name: found[name] for name in names} == pytest.approx({name: expected[name] for name in names})
    for name in ("seeddelta.skipped_inputs", "seeddelta.active_inputs"):
        assert found[name] == expected[name] > 0


@pytest.mark.parametrize("settings", [
    ("--state-pack-kv", "--state-pack-kv-budget", "0.2"), ("--kwta-target", "kv", "--kwta-k-abs", "24"),
    ("--event-target", "kv", "--event-delta-theta", "1"),
])  # fmt: skip
def test_chosen_keys_are_those_of_run(
    settings: tuple[str, ...], folder: Path, smollm2_full: Path, smollm2_f16: Path, tmp_path: Path
) -> None:
    ours_json, theirs_json = tmp_path / "ours.json", tmp_path / "theirs.json"
    prompt = " ".join(PROMPTS * 12)  # longer than the windows that are always computed
    more = ("--force", "--state-pack-kv-min-context", "64", *settings)
    more = (*more, "--state-pack-kv=exact") if "--event-target" in settings else more
    for model in (smollm2_full, smollm2_f16):
        arguments = ("-m", model, "-p", prompt, "-n", 24, "-c", 2048)
        text = ours(folder, "run", *arguments, "-t", 2, *more, "--json", ours_json)
        done = run(
            folder, "llama-completion", *arguments, *GREEDY, "--no-warmup", "--no-display-prompt",
            options=(*more, "--metrics-json", theirs_json),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert plain(done.stdout.replace("[end of text]", "")) == plain(text).removeprefix(prompt).strip()
        expected, found = json.loads(ours_json.read_text()), json.loads(theirs_json.read_text())
        found = found.get(str(model)) or found["ordinary models"]
        names = [name for name in expected if name.startswith(("pack.", "event.")) and "_ms_" not in name]
        assert {name: found[name] for name in names} == pytest.approx({name: expected[name] for name in names})
        assert found["attention.packed"] + found.get("attention.events", 0) > 0
    done = run(folder, "llama-completion", *arguments, *GREEDY, "-np", 2, options=more)
    assert done.returncode != 0
    assert "follow the tokens of one sequence" in done.stderr


def test_adapters_are_added(folder: Path, smollm2_full: Path, smollm2_f16: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", smollm2_f16, scale=4.0)
    arguments = ("-m", smollm2_full, "-p", PROMPTS[0], "-n", 24)
    done = run(folder, "llama-completion", *arguments, *GREEDY, "--lora", adapter)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = plain(ours(folder, "run", *arguments, "-t", 2, "--lora", adapter))
    assert plain(done.stdout.replace("[end of text]", "")) == expected
    assert expected != plain(ours(folder, "run", *arguments, "-t", 2))


def test_perplexity_is_that_of_eval(folder: Path, smollm2_full: Path, tiny_text: Path) -> None:
    arguments = ("-m", smollm2_full, "-f", tiny_text, "--chunks", 2, "-c", 256, "-t", 2)
    done = run(folder, "llama-perplexity", *arguments, "-b", 256)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    assert found is not None, done.stderr[-2000:]
    report = json.loads(ours(folder, "eval", *arguments, "--no-speed", "--json"))
    (expected,) = (one["perplexity"]["ppl"] for one in report["models"])
    assert found[1] == f"{expected:.4f}"


def test_chat_and_bench(folder: Path, smollm2_full: Path) -> None:
    done = run(folder, "llama-cli", "-m", smollm2_full, "-p", "Say yes.", "-n", 8, "-st", "--temp", "0", "-t", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    done = run(folder, "llama-bench", "-m", smollm2_full, "-p", 32, "-n", 4, "-r", 1, "-t", 2, "-o", "json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert [test["n_prompt"] for test in json.loads(done.stdout)] == [32, 0]


def test_other_ways_to_load_are_refused(folder: Path, smollm2_full: Path) -> None:
    for mode in ("none", "dio", "mlock"):
        done = run(folder, "llama-completion", "-m", smollm2_full, "-p", "a", "-n", 2, *GREEDY, "--load-mode", mode)
        assert done.returncode != 0
        assert "is not where the model was mapped; load it with mmap (--load-mode mmap" in done.stderr
    done = run(folder, "llama-completion", "-m", smollm2_full, "-p", "a", "-n", 2, *GREEDY, "--load-mode", "mmap+mlock")
    assert done.returncode == 0, done.stderr[-2000:]


def test_imatrix_is_refused(folder: Path, smollm2_full: Path, tiny_text: Path, tmp_path: Path) -> None:
    """By name, and where it is called otherwise, when it looks at the first node."""
    arguments = ("-m", smollm2_full, "-f", tiny_text, "--chunks", 1, "-c", 64, "-o", tmp_path / "i.gguf")
    assert "use `seeddelta imatrix` with the original model" in run(folder, "llama-imatrix", *arguments).stderr
    other = tmp_path / "other"
    other.symlink_to(folder / "llama-imatrix")
    done = run(tmp_path, "other", *arguments)
    assert done.returncode != 0
    assert "looks at the graph's nodes one by one" in done.stderr
    assert not (tmp_path / "i.gguf").exists()


@contextmanager
def server(folder: Path, *arguments: object, options: tuple[object, ...] = ()) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = command(folder, "llama-server", *arguments, "--port", port, "-t", 2, options=options)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    address = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(process.stderr.read)  # type: ignore[union-attr]
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=10).close()
                    break
                except OSError:
                    assert process.poll() is None, said.result()[-2000:]
                    time.sleep(0.1)
            yield address
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, said.result()[-2000:]
        finally:
            process.kill()


def complete(address: str, prompt: str) -> str:
    body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "cache_prompt": False}
    request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=300) as reply:
        return str(json.load(reply)["content"])


def test_requests_at_once_are_as_each_alone(folder: Path, smollm2_full: Path) -> None:
    with server(folder, "-m", smollm2_full, "--parallel", 4, "-c", 2048) as address:
        alone = {prompt: complete(address, prompt) for prompt in PROMPTS}
        with ThreadPoolExecutor(4) as clients:
            asked = PROMPTS * 5
            together = list(clients.map(lambda prompt: complete(address, prompt), asked))
    assert len(set(alone.values())) > 4
    assert together == [alone[prompt] for prompt in asked]


def test_attention_of_slots_is_as_alone(
    folder: Path, smollm2_full: Path, smollm2_quantized: Path, tmp_path: Path
) -> None:
    """Ours, in a SeedΔ model and in an ordinary one."""
    metrics = tmp_path / "m.json"
    options = ("--attention", "exact", "--metrics-json", metrics)
    for model, name in ((smollm2_full, str(smollm2_full)), (smollm2_quantized, "ordinary models")):
        with server(folder, "-m", model, "--parallel", 4, "-c", 2048, options=options) as address:
            alone = {prompt: complete(address, prompt) for prompt in PROMPTS}
            with ThreadPoolExecutor(4) as clients:
                together = list(clients.map(lambda prompt: complete(address, prompt), PROMPTS * 3))
        assert len(set(alone.values())) > 4
        assert together == [alone[prompt] for prompt in PROMPTS * 3]
        found = json.loads(metrics.read_text())[name]
        assert found["attention.exact"] > 24 * len(PROMPTS)
        assert found["attention.left"] == 0


def test_attention_of_an_ordinary_model_is_that_of_run(
    folder: Path, smollm2_quantized: Path, tiny_text: Path, tmp_path: Path
) -> None:
    """By default, behind a long prompt."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(tiny_text.read_text()[:4000])
    arguments, metrics = ("-m", smollm2_quantized, "-f", prompt, "-n", 24, "-c", 2048), tmp_path / "m.json"
    done = run(folder, "llama-completion", *arguments, *GREEDY, options=("--metrics-json", metrics))
    assert done.returncode == 0, done.stderr[-2000:]
    expected = plain(ours(folder, "run", *arguments, "-t", 2))
    assert expected in plain(done.stdout.replace("[end of text]", ""))
    found = json.loads(metrics.read_text())["ordinary models"]
    assert found["attention.exact"] == found["attention.nodes"] - found["attention.prompts"]
    assert found["attention.exact"] == 30 * (23 + 1)  # the program's first decode warms up
    assert found["attention.prompts"] >= 30
    assert found["attention.left"] == 0


def test_a_draft_of_the_same_file(folder: Path, smollm2_full: Path, smollm2_f16: Path) -> None:
    """Two models in one process: the same file twice, and beside the one that it was made from."""
    with server(folder, "-m", smollm2_full, "-c", 1024) as address:
        expected = complete(address, PROMPTS[0])
    for draft in (smollm2_full, smollm2_f16):
        with server(folder, "-m", smollm2_full, "-md", draft, "--spec-type", "draft-simple", "-c", 1024) as address:
            assert complete(address, PROMPTS[0]) == expected
