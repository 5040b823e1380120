"""The covariance with gradient weights: the NumPy model is llama.cpp's, and its gradients are right."""

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
from seeddelta.calibrate import capture, open_covariance
from seeddelta.session import open_model
from seeddelta.session.decoder import Decoder
from tiny_llama import write_llama

RESEARCH = Path(__file__).parents[1] / "research" / "token_weights"
pytestmark = pytest.mark.slow
TOKENS = np.random.default_rng(0).integers(260, 500, 24)


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gradient") / "tiny.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def program() -> Any:
    sys.path.insert(0, str(RESEARCH))
    try:
        import gradient_covariance
    finally:
        sys.path.remove(str(RESEARCH))
    return gradient_covariance


def test_logits_are_those_of_llama_cpp(tiny: Path, program: Any) -> None:
    llm = open_model(tiny, n_ctx=64, n_batch=64, threads=1)
    try:
        decoder = Decoder(llm)
        decoder.clear()
        theirs = decoder.decode(TOKENS.astype(np.int32), 0, slice(0, len(TOKENS)))
        expected = np.array(theirs, np.float32)
    finally:
        llm.close()
    ours = program.Llama(tiny).logits(TOKENS)
    assert np.abs(ours - expected).max() < 0.01 * expected.std()


def test_gradients_are_differences(tiny: Path, program: Any) -> None:
    """∂loss/∂W = Σ_t g_t x_tᵀ for every matrix, against the loss with the matrix moved a little."""
    model = program.Llama(tiny)
    model.w = {name: weight.astype(np.float64) for name, weight in model.w.items()}
    labels = np.roll(TOKENS, -1)
    found: dict[str, Any] = {}
    logits = model.logits(TOKENS)
    model.backward(program.loss_gradient(logits, labels), lambda name, x, dy: found.update({name: dy.T @ x}))
    assert len(found) == 14

    def loss() -> float:
        p = np.exp(model.logits(TOKENS).astype(np.float64))
        return float(-np.log((p / p.sum(-1, keepdims=True))[np.arange(len(labels)), labels]).sum())

    random = np.random.default_rng(1)
    for name, gradient in found.items():
        weight = model.w[name.removesuffix(".weight")]
        direction = random.normal(size=weight.shape)
        step = 2e-2 * np.abs(weight).mean() * direction
        weight += step
        above = loss()
        weight -= 2 * step
        below = loss()
        weight += step
        assert (above - below) / 2 == pytest.approx(float((gradient * step).sum()), rel=0.02, abs=2e-4), name


def test_program(tiny: Path, program: Any, tmp_path: Path) -> None:
    """Power 0 is the covariance that the capture has; a build takes what is written."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 20, encoding="utf-8")
    files = {"0": tmp_path / "none.gguf", "1": tmp_path / "fisher.gguf"}
    saves = [f"--save={power}={file}" for power, file in files.items()]
    command = [sys.executable, str(RESEARCH / "gradient_covariance.py"), "-m", str(tiny), "-f", str(text)]
    paths = os.pathsep.join([str(Path(seeddelta.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    subprocess.run([*command, *saves, "--chunks", "2", "--ctx", "64"], check=True, env=environment)
    plain, fisher = (open_covariance(file) for file in files.values())
    assert len(plain.tensors) == len(fisher.tensors) == 14
    captured = capture(tiny, text, ctx=64, chunks=2, targets="all", threads=1, progress=False)
    for name in plain.tensors:
        own = plain.matrix(name)
        same = captured.hook.covariance(captured.representatives[name]) / (2 * 64)
        assert np.abs(own - same).max() < 0.1 * np.abs(same).max()  # without the last token of each chunk
        assert np.diagonal(fisher.matrix(name)).mean() == pytest.approx(1, rel=1e-3)
        assert np.abs(fisher.matrix(name) - own).max() > 0.01
    recipe = seeddelta.Recipe(input=tiny, output=tmp_path / "o.gguf", targets="all", hessian=files["1"])
    report = seeddelta.build(recipe, progress=False)
    assert {row.method for row in report.tensors} == {"feedback"}
