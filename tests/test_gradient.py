"""Gradients of a llama: its logits are llama.cpp's, its gradients are differences, and a build takes the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT
from seeddelta.calibrate import capture, write_covariance
from seeddelta.calibrate.gradient import capture_gradient
from seeddelta.calibrate.gradient_file import open_gradient
from seeddelta.calibrate.llama_block import MATRICES, llama_shape, read_block, read_head, rms_norm, softmax
from seeddelta.calibrate.text import read_windows
from seeddelta.errors import NotAvailableError
from seeddelta.gguf.source import open_source
from seeddelta.runtime.decoder import Decoder
from seeddelta.runtime.session import open_model
from tiny_llama import write_experts, write_gemma2, write_llama, write_qwen

TOKENS = np.random.default_rng(0).integers(260, 500, 24)
KINDS = ("llama", "qwen2", "qwen3")
NORMS = ("attn_norm", "ffn_norm")


@pytest.fixture(scope="module")
def models(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gradient")
    made = {kind: write_qwen(folder / f"{kind}.gguf", smollm2_quantized, kind) for kind in KINDS[1:]}
    return made | {"llama": write_llama(folder / "llama.gguf", smollm2_quantized)}


class Model:
    """All blocks of a model in memory."""

    def __init__(self, path: Path) -> None:
        source = open_source(path)
        self.shape = llama_shape(source)
        self.embedding = source.matrix("token_embd.weight")
        self.blocks = [read_block(source, self.shape, layer) for layer in range(self.shape.layers)]
        self.head = read_head(source, self.shape)

    def forward(self, tokens: Any) -> tuple[Any, list[Any]]:
        x, kept = self.embedding[tokens], []
        for block in self.blocks:
            x, own = block.forward(x)
            kept.append(own)
        return x, kept

    def logits(self, tokens: Any) -> Any:
        return rms_norm(self.forward(tokens)[0], self.head.norm, self.head.eps)[0] @ self.head.matrix.T

    def gradients(self, tokens: Any, random: Any) -> dict[str, Any]:
        """∂loss/∂y and y, float32 [tokens, n_out], of every matrix and norm."""
        x, kept = self.forward(tokens)
        dx, found = self.head.gradient(x, random), {}
        for layer in reversed(range(self.shape.layers)):
            seen = {}

            def keep(kind: str, g: Any, y: Any, seen: Any = seen) -> None:
                seen[kind] = (g, y)

            dx = self.blocks[layer].backward(kept[layer], dx, keep)
            found |= {f"blk.{layer}.{kind}.weight": pair for kind, pair in seen.items()}
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_llama_cpp(kind: str, models: dict[str, Path]) -> None:
    llm = open_model(models[kind], n_ctx=64, n_batch=64, threads=1)
    try:
        decoder = Decoder(llm)
        decoder.clear()
        expected = np.array(decoder.decode(TOKENS.astype(np.int32), 0, slice(0, len(TOKENS))), np.float32)
    finally:
        llm.close()
    assert np.abs(Model(models[kind]).logits(TOKENS) - expected).max() < 0.01 * expected.std()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_differences(kind: str, models: dict[str, Path]) -> None:
    """Every output of a matrix is moved by something of its own, as a bias does, and every weight of a norm changed."""
    model, random = Model(models[kind]), np.random.default_rng(1)
    found = model.gradients(TOKENS, np.random.default_rng(2))
    assert len(found) == 2 * len(MATRICES + NORMS)
    logits = model.logits(TOKENS)
    noise = np.random.default_rng(2).random(logits.shape, np.float32)
    labels = (logits - np.log(-np.log(noise + np.float32(1e-12)))).argmax(-1)

    def loss() -> float:
        p = softmax(model.logits(TOKENS).astype(np.float64))
        return float(-np.log(p[np.arange(len(labels)), labels]).sum())

    for name, (gradient, y) in found.items():
        _, layer, matrix, _ = name.split(".")
        weights = model.blocks[int(layer)].w
        at = matrix if matrix in NORMS else f"{matrix}.bias"
        own = weights.get(at, np.float32(0))
        step = (0.004 * random.normal(size=y.shape[1:] if matrix in NORMS else y.shape)).astype(np.float32)
        values = []
        for sign in (1, -1):
            weights[at] = own * np.exp(sign * step) if matrix in NORMS else own + sign * step
            values.append(loss())
        weights[at] = own
        moved = y * step if matrix in NORMS else step
        expected = float((gradient.astype(np.float64) * moved).sum())
        assert (values[0] - values[1]) / 2 == pytest.approx(expected, rel=0.01, abs=2e-4), name


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
    model, sums = Model(models["qwen2"]), {}
    for chunk, tokens in enumerate(read_windows(models["qwen2"], text, "text", 64, 3).tokens):
        for name, (g, _) in model.gradients(tokens, np.random.default_rng([7, chunk])).items():
            if "norm" in name:
                continue
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
    recipe = seeddelta.Recipe(input=model, output=tmp_path / "o.gguf", targets="all", hessian=covariance, bits=3)
    report = seeddelta.build(recipe.model_copy(update={"gradient": gradient}), progress=False)
    assert {row.method for row in report.tensors} == {"row feedback"}
    assert all(0 < row.metrics.rel_grad < row.metrics.rel_l2 for row in report.tensors)


def test_other_models_are_refused(smollm2_quantized: Path, text: Path, tmp_path: Path) -> None:
    gemma = write_gemma2(tmp_path / "gemma.gguf", smollm2_quantized)
    experts = write_experts(tmp_path / "experts.gguf", smollm2_quantized, "llama")
    for model, reason in ((gemma, "not for gemma2"), (experts, "ffn_gate_inp")):
        with pytest.raises(NotAvailableError, match=reason):
            capture_gradient(model, text, tmp_path / "g.gguf", progress=False)
    assert not (tmp_path / "g.gguf").exists()


@pytest.mark.parametrize("calibrate", ["dense", "sequential"])
def test_quantize(calibrate: str, models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    gradient = tmp_path / "gradient.gguf"
    capture_gradient(models["llama"], text, gradient, ctx=64, chunks=4, threads=1, progress=False)
    report = seeddelta.quantize(
        models["llama"], tmp_path / "o.gguf", text=text, ctx=64, chunks=8, bits=3, targets="all", gradient=gradient,
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
    assert len(open_gradient(gradient).tensors) == 2 * len(MATRICES)
    options = ["--gradient", str(gradient), "--chunks", "4", "--targets", "all", "--bits", "3"]
    run(["quantize", str(models["llama"]), "-o", str(output), *options, *small])
    with seeddelta.open_seeddelta(output) as file:
        assert file.metadata["seeddelta.gradient.sha256"] == open_gradient(gradient).sha256


def run(arguments: list[str]) -> None:
    paths = os.pathsep.join([str(Path(seeddelta.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-m", "seeddelta", *arguments], check=True, env=os.environ | {"PYTHONPATH": paths})
