"""A codebook as the whole weight: built with --statecells, served by default, asked for with --statecells."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import seeddelta
from llama_helpers import TEXT, divergence, load, logits_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.errors import FormatError
from seeddelta.gguf.reader import has_statecells
from seeddelta.runtime import RuntimeConfig
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

MATRICES = 2 * 7


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "cells.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def cells(dense: Path, model_dir: Path) -> Path:
    path = model_dir / "cells.seeddelta.gguf"
    assert main(["build", "-i", str(dense), "-o", str(path), "--statecells", "--codebook-size", "24", "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def residual(dense: Path, model_dir: Path) -> Path:
    path = model_dir / "with-residual.gguf"
    recipe = seeddelta.Recipe(input=dense, output=path, scheme="codebook_resid", K=2, codebook_size=8, targets="all")
    seeddelta.build(recipe, progress=False)
    return path


def small(path: Path, **options: object) -> object:
    return load(path, n_ctx=64, n_batch=64, **options)


def test_only_a_codebook_without_base_is_statecells(dense: Path, cells: Path, residual: Path) -> None:
    assert has_statecells(cells)
    assert not has_statecells(residual)
    assert not has_statecells(dense)


def test_served_by_default_and_when_asked_for(cells: Path, tmp_path: Path) -> None:
    stock = small(seeddelta.dequantize(cells, tmp_path / "dense.gguf", progress=False))
    for options in ({}, {"statecells": True}, {"config": RuntimeConfig(statecells=True)}):
        llm = small(cells, **options)
        tokens = tokens_of(llm, 20)
        assert divergence(logits_of(stock, tokens), logits_of(llm, tokens)) < 1e-4
        metrics = llm.seeddelta.metrics()
        assert metrics["statecells.weights"] == metrics["seeddelta.weights"] == MATRICES
        assert metrics["statecells.calls"] == metrics["seeddelta.calls"] == MATRICES
        assert metrics["seeddelta.calls.codebook_resid"] == 0


def test_other_models_are_refused_when_asked_for(dense: Path, residual: Path) -> None:
    for path in (dense, residual):
        for options in ({"statecells": True}, {"config": RuntimeConfig(statecells=True)}):
            with pytest.raises(FormatError, match=rf"{path.name}: has no StateCells weights.*build --statecells"):
                small(path, **options)
    llm = small(residual)
    logits_of(llm, tokens_of(llm, 4))
    metrics = llm.seeddelta.metrics()
    assert metrics["seeddelta.calls.codebook_resid"] == metrics["seeddelta.calls.lanes"] == MATRICES
    assert metrics["statecells.calls"] == metrics["statecells.weights"] == 0


def test_the_wish_survives_a_pickle(cells: Path) -> None:
    assert pickle.loads(pickle.dumps(small(cells, statecells=True)))._seeddelta_options["statecells"] is True


def test_run(cells: Path, residual: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "metrics.json"
    arguments = ["run", "-v", "-p", "a b", "-n", "3", "-c", "64", "--statecells", "--json", str(out)]
    assert main([*arguments, "-m", str(cells)]) == 0
    assert f"{MATRICES} of the weights are StateCells" in capfd.readouterr().err
    assert json.loads(out.read_text())["statecells.calls"] >= MATRICES
    assert main([*arguments, "-m", str(residual)]) == 1
    assert "no StateCells weights" in capfd.readouterr().err


def test_eval_wants_one_model_that_has_them(
    dense: Path, cells: Path, residual: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 4)
    common = ["--text", str(text), "--ctx", "32", "--chunks", "1", "--no-speed", "--no-kl", "-t", "1", "--json", "-q"]
    command = ["eval", *common, "--statecells", "-m", str(dense)]
    assert main([*command, "-m", str(cells)]) == 0
    capfd.readouterr()
    assert main([*command, "-m", str(residual)]) == 1
    assert "no StateCells weights" in capfd.readouterr().err
    assert main(["bench", "--statecells", "-m", str(dense), "-q"]) == 1
    assert "no StateCells weights" in capfd.readouterr().err


@pytest.mark.parametrize("option", [["--base-kind", "lanes"], ["--scheme", "coo"], ["--preset", "small"]])
def test_builds_that_contradict(
    dense: Path, tmp_path: Path, option: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"
    assert main(["build", "-i", str(dense), "-o", str(out), "--statecells", *option]) == 1
    assert f"leave out {option[0]}" in capfd.readouterr().err
    assert not out.exists()


def test_inspect_marks_them(cells: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(cells)]) == 0
    assert all(tensor["statecells"] for tensor in json.loads(capfd.readouterr().out)["converted"])
    assert main(["inspect", "-v", str(cells)]) == 0
    assert "statecells" in capfd.readouterr().out
