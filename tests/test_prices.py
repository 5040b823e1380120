"""Prices of matrices: the divergence that errors cause, foretold from inputs and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT
from seeddelta.calibrate.block import Block, read_block
from seeddelta.calibrate.block_shape import model_shape
from seeddelta.calibrate.gradient import capture_gradient
from seeddelta.calibrate.gradient_file import open_gradient
from seeddelta.calibrate.head import Head, read_head
from seeddelta.calibrate.moments import Moments
from seeddelta.calibrate.text import read_windows
from seeddelta.cli.main import main
from seeddelta.convert.prices import price
from seeddelta.gguf.source import open_source
from tiny_llama import write_llama

CTX, CHUNKS = 64, 4


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("prices") / "llama.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 20, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def measured(model: Path, text: Path) -> dict[str, tuple[Any, Moments]]:
    """Matrices and their moments."""
    found: dict[str, tuple[Any, Moments]] = {}

    def keep(name: str, weights: Any, moments: Moments) -> float:
        found[name] = weights, moments
        return 1.0

    output = text.with_name("gradient.gguf")
    capture_gradient(model, text, output, ctx=CTX, chunks=CHUNKS, threads=1, price=keep, progress=False)
    gradient = open_gradient(output)
    assert {name: gradient.price(name) for name in found} == pytest.approx(
        dict.fromkeys(found, 1.0) | {"token_embd.weight": gradient.price("token_embd.weight")}
    )
    return found


def predictions(path: Path, tokens: Any, changed: dict[str, Any]) -> Any:
    """Logarithms of the probabilities [tokens, n_vocab] of a model with some other matrices."""
    source = open_source(path)
    shape = model_shape(source, len(tokens))
    x = source.matrix("token_embd.weight")[tokens]
    for layer in range(shape.layers):
        block = read_block(source, shape, layer)
        own = {kind: changed.get(f"blk.{layer}.{kind}.weight", w) for kind, w in block.w.items()}
        x = Block(shape.blocks[layer], own).forward(x)[0]
    head = read_head(source, shape)
    head = Head(shape, head.norm, head.bias, changed.get("token_embd.weight", head.matrix))
    logits = head.logits(head.normalized(x)[0])[0]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_up.weight", "blk.1.attn_output.weight", "blk.1.ffn_down.weight", "token_embd.weight"]
)
def test_moments_tell_the_divergence(name: str, model: Path, text: Path, measured: dict[str, Any]) -> None:
    """½ power / (n_out n_in) tr(G E H Eᵀ) of small errors E is about the divergence that they cause."""
    weights, moments = measured[name]
    n_out, n_in = weights.shape
    error = 0.02 * np.random.default_rng(5).standard_normal(weights.shape, np.float32) * np.sqrt((weights**2).mean())
    g = moments.gradient
    through = g[:, None] * error if g.ndim == 1 else g @ error
    expected = 0.5 * moments.power / (n_out * n_in) * float((through * (error @ moments.inputs)).sum())
    found = []
    for tokens in read_windows(model, text, "text", CTX, CHUNKS).tokens:
        before, after = (predictions(model, tokens, changed) for changed in ({}, {name: weights + error}))
        found.append((np.exp(before) * (before - after)).sum(-1).mean())
    assert expected == pytest.approx(np.mean(found), rel=0.4)


def test_feedback_is_counted(measured: dict[str, Any]) -> None:
    """Where inputs or gradients go together a matrix costs less, as feedback makes up for errors."""
    recipe = seeddelta.Recipe(input="a", output="b")
    weights, moments = measured["blk.0.ffn_up.weight"]
    n_out, n_in = weights.shape
    apart = Moments(np.eye(n_out, dtype=np.float32), np.eye(n_in, dtype=np.float32), moments.power)
    alone = price("x", weights, apart, recipe)
    assert alone == pytest.approx(0.875 * moments.power * float((weights**2).mean()), rel=0.15)
    assert price("x", weights, moments, recipe) < alone
    assert price("x", weights, Moments(moments.gradient, moments.inputs, 0.0), recipe) == 0


def test_quantize_spends_bits_by_price(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same size with and without measured prices: other rates, and a prediction of the divergence."""
    reports = [
        seeddelta.quantize(
            model, tmp_path / f"{quality}.gguf", target_bpw=3.5, text=text, ctx=CTX, chunks=CHUNKS, quality=quality,
            threads=1, progress=False, effort="fast",
        )
        for quality in ("normal", "best")
    ]  # fmt: skip
    normal, best = ({row.name: round(row.bits_per_weight, 2) for row in report.tensors} for report in reports)
    assert normal != best
    assert reports[0].predicted_divergence is None
    assert reports[1].predicted_divergence > 0
    command = ["quantize", str(model), "-o", str(tmp_path / "by-command.gguf"), "--bpw", "3.5", "--text", str(text)]
    command += ["--ctx", str(CTX), "--chunks", str(CHUNKS), "--quality", "best", "--check", "0", "--threads", "1"]
    main([*command, "--set", "effort=fast"])
    expected = f"{reports[1].predicted_divergence:.4f}"
    assert f"predicted from the gradients: KL divergence {expected} nats" in capsys.readouterr().out
