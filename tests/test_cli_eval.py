"""The commands run, eval and bench, as the program and in this process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llama_helpers import TEXT
from seeddelta.cli.main import COMMANDS, main


def seeddelta(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seeddelta.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"}, timeout=120)


def test_run_writes_text_to_stdout_and_the_summary_to_stderr(short_two_layers: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.json"
    prompt = "The capital of France is"
    done = seeddelta("run", "-m", short_two_layers, "-p", prompt, "-n", 8, "--json", metrics, "-t", 1, "-v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(prompt)
    assert len(done.stdout) > len(prompt) + 8
    assert re.search(r"^5 prompt tokens, 8 generated, [\d.]+ tokens/s, \d+ MB$", done.stderr, re.MULTILINE)
    assert "seeddelta.cli.run: 14 converted matrices" in done.stderr
    found = json.loads(metrics.read_text())
    assert found["generated_tokens"] == 8
    assert found["seeddelta.calls"] > 0
    assert found["memory"]["resident"] > 0


def test_run_takes_a_plain_model_and_a_chat(smollm2_quantized: Path) -> None:
    done = seeddelta("run", "-m", smollm2_quantized, "--chat", "-p", "Say hello.", "-n", 12, "-t", 1, "-v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Say hello." not in done.stdout
    assert "plain GGUF" in done.stderr


def test_eval_as_json_and_as_a_table(
    smollm2_quantized: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 8)
    common = ["eval", "-m", str(smollm2_quantized), "--text", str(text), "--ctx", "64", "--chunks", "2"]
    common += ["--no-speed", "--threads", "1"]
    assert main([*common, "--json", "-q"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert found["models"][0]["perplexity"]["chunks"] == 2
    assert err == ""
    assert main(common) == 0
    out, err = capfd.readouterr()
    assert f"{found['models'][0]['perplexity']['ppl']:.2f}" in out
    assert "perplexity" in err  # the progress bar


def test_bench(smollm2_quantized: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", str(smollm2_quantized), "-p", "0", "-n", "4", "-t", "1", "-r", "2", "-q"]) == 0
    out, _ = capfd.readouterr()
    assert "generation, tokens/s" in out
    assert "4 generated tokens, median (range) of 2" in out


@pytest.mark.parametrize("name", ["run", "eval", "bench", "demo"])
def test_help_has_an_example(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert name in COMMANDS
    assert main([name, "--help"]) == 0
    assert f"Example: seeddelta {name}" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-m", "none.gguf", "-p", "x"], "none.gguf: no such file"),
        (["run", "-m", "MODEL", "-p", "x", "-n", "600", "-c", "512"], "do not fit a context of 512"),
        (["run", "-m", "MODEL", "-p", "x", "-t", "two"], "error: --threads 'two': it must be a whole number"),
        (["run", "-m", "MODEL", "-p", "x", "--seeddelta-gap", "0.1"], "needs --seeddelta-fallback"),
        (["eval", "-m", "none.gguf", "--text", "x"], "no such file"),
        (["eval", "-m", "MODEL", "--text", "none.txt"], "none.txt: no such file"),
        (["eval", "-m", "MODEL", "--text", "SHORT", "--no-speed", "-q", "-t", "1"], "fewer than the 1024 tokens"),
        (["bench", "-m", "MODEL", "--threads", "-1"], "error: --threads '-1': it must be at least 0"),
        (["bench", "-m", "SHORT"], "SHORT"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, smollm2_quantized: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "SHORT"
    short.write_text("a few words")
    places = {"MODEL": str(smollm2_quantized), "SHORT": str(short)}
    assert main([places.get(argument, argument) for argument in arguments]) == 1
    _, err = capfd.readouterr()
    assert err.startswith("seeddelta: error: ")
    assert message in err
    assert err.count("\n") == 1
