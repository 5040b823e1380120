"""Gradient files: what is in them, and a build takes them. The gradients themselves are in test_block.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from block_models import CASES, SHAPES, write_case
from llama_helpers import TEXT
from seeddelta.calibrate import capture, write_covariance
from seeddelta.calibrate.block import read_block
from seeddelta.calibrate.block_shape import model_shape
from seeddelta.calibrate.gradient import capture_gradient
from seeddelta.calibrate.gradient_file import open_gradient
from seeddelta.calibrate.head import read_head
from seeddelta.calibrate.text import read_windows
from seeddelta.errors import NotAvailableError
from seeddelta.gguf.source import open_source
from tiny_llama import write_gpt_oss, write_llama, write_qwen

MATRICES = 7  # of a block


@pytest.fixture(scope="module")
def models(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gradient")
    qwen = write_qwen(folder / "qwen2.gguf", smollm2_quantized, "qwen2")
    return {"qwen2": qwen, "llama": write_llama(folder / "llama.gguf", smollm2_quantized)}


def gradients(path: Path, tokens: Any, random: Any) -> dict[str, Any]:
    """∂loss/∂y float32 [tokens, n_out] of every matrix."""
    source = open_source(path)
    shape = model_shape(source, len(tokens))
    x, backs, found = source.matrix("token_embd.weight")[tokens], [], {}
    for layer in range(shape.layers):
        x, back = read_block(source, shape, layer).forward(x)
        backs.append(back)
    dx, _ = read_head(source, shape).gradient(x, random)
    for layer in reversed(range(shape.layers)):
        seen: dict[str, Any] = {}
        dx = backs[layer](dx, lambda kind, g, *_, seen=seen: seen.__setitem__(kind, g))
        found |= {f"blk.{layer}.{kind}.weight": g for kind, g in seen.items() if "norm" not in kind}
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 20, encoding="utf-8")
    return path


def test_second_moments(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"ctx": 64, "chunks": 3, "seed": 7, "progress": False}
    for threads in (1, 2):
        capture_gradient(models["qwen2"], text, tmp_path / f"{threads}.gguf", threads=threads, **options)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.gguf", "2.gguf"]
    sums: dict[str, Any] = {}
    for chunk, tokens in enumerate(read_windows(models["qwen2"], text, "text", 64, 3).tokens):
        for name, g in gradients(models["qwen2"], tokens, np.random.default_rng([7, chunk])).items():
            wide = g.astype(np.float64)
            length = np.sqrt(np.square(wide).sum(-1, keepdims=True))
            sums[name] = sums.get(name, 0) + (wide / np.maximum(length, 1e-30)).T @ wide
    gradient = open_gradient(tmp_path / "1.gguf")
    assert set(gradient.tensors) == set(sums)
    for name, expected in sums.items():
        expected = expected / np.diagonal(expected).mean()
        np.testing.assert_allclose(gradient.matrix(name), expected, atol=1e-3 * np.abs(expected).max())


def test_build(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    """The loss that the errors cause is lower, by the text's own gradients."""
    model, gradient, covariance = models["llama"], tmp_path / "gradient.gguf", tmp_path / "covariance.gguf"
    capture_gradient(model, text, gradient, ctx=64, chunks=4, threads=1, progress=False)
    write_covariance(covariance, capture(model, text, ctx=64, targets="all", threads=1, progress=False))
    recipe = seeddelta.Recipe(input=model, output=tmp_path / "o.gguf", targets="all", hessian=covariance, bits=4)
    report = seeddelta.build(recipe.model_copy(update={"gradient": gradient}), progress=False)
    assert {row.method for row in report.tensors} == {"row feedback"}
    assert all(0 < row.metrics.rel_grad < row.metrics.rel_l2 for row in report.tensors)


def test_other_models_are_refused(smollm2_quantized: Path, text: Path, tmp_path: Path) -> None:
    model = write_gpt_oss(tmp_path / "oss.gguf", smollm2_quantized)
    with pytest.raises(NotAvailableError, match="not for gpt-oss"):
        capture_gradient(model, text, tmp_path / "g.gguf", progress=False)
    with pytest.raises(NotAvailableError, match="not for gpt-oss"):
        seeddelta.quantize(model, tmp_path / "o.gguf", text=text, gradient="auto", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["oss.gguf"]


_ALWAYS = {"qwen2moe", "phi3", "gemma3", "granite", "starcoder2"}  # one of each kind of block


@pytest.mark.parametrize(
    "name",
    [
        name if name in _ALWAYS else pytest.param(name, marks=pytest.mark.slow)
        for name, case in CASES.items()
        if "of" not in case
    ],
)
def test_quantize_measures_the_gradients(name: str, text: Path, smollm2_quantized: Path, tmp_path: Path) -> None:
    """Every matrix of a block but the stacks of experts is encoded with them, fused ones and shared experts, too."""
    model = write_case(name, tmp_path, smollm2_quantized)
    report = seeddelta.quantize(
        model, tmp_path / "o.gguf", text=text, ctx=32, chunks=3, bits=4, effort="fast", targets="all", gradient="auto",
        layers="0-1", threads=1, progress=False,
    )  # fmt: skip
    dense = [row for row in report.tensors if not row.name.endswith("_exps.weight")]
    kinds = [kind for kind in CASES[name]["tensors"].split() if kind in SHAPES and len(SHAPES[kind]) == 2]
    assert len(dense) == 2 * len([kind for kind in kinds if kind != "ffn_gate_inp"])
    assert {row.method for row in dense} == {"row feedback"}
    assert all(0 < row.metrics.rel_grad < row.metrics.rel_l2 for row in dense)
    assert all(row.metrics.rel_grad is None for row in report.tensors if row not in dense)


@pytest.mark.parametrize("calibrate", ["dense", "sequential"])
def test_quantize(calibrate: str, models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    gradient = tmp_path / "gradient.gguf"
    capture_gradient(models["llama"], text, gradient, ctx=64, chunks=4, threads=1, progress=False)
    report = seeddelta.quantize(
        models["llama"], tmp_path / "o.gguf", text=text, ctx=64, chunks=8, bits=4, targets="all", gradient=gradient,
        calibrate=calibrate, threads=1, progress=False,
    )  # fmt: skip
    assert {row.method for row in report.tensors} == {"row feedback"}


@pytest.mark.slow
def test_commands(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    """What imatrix writes, quantize takes."""
    gradient, output = tmp_path / "gradient.gguf", tmp_path / "o.gguf"
    small = ["-f", str(text), "--ctx", "64", "-t", "1"]
    files = ["-o", str(tmp_path / "i.gguf"), "--gradient", str(gradient)]
    run(["imatrix", "-m", str(models["llama"]), *files, "--chunks", "2", "--gradient-chunks", "3", *small])
    assert len(open_gradient(gradient).tensors) == 2 * MATRICES
    options = ["--set", f"gradient={gradient}", "--chunks", "4", "--targets", "all", "--bits", "3"]
    run(["quantize", str(models["llama"]), "-o", str(output), *options, *small])
    with seeddelta.open_seeddelta(output) as file:
        assert file.metadata["seeddelta.gradient.sha256"] == open_gradient(gradient).sha256


def run(arguments: list[str]) -> None:
    paths = os.pathsep.join([str(Path(seeddelta.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-m", "seeddelta", *arguments], check=True, env=os.environ | {"PYTHONPATH": paths})
