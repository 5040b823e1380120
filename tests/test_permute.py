"""Neurons in another order: the same model, and neighbours that belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT, divergence, load_small, logits_of, tokens_of
from seeddelta.calibrate import capture, write_covariance
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError, SourceModelError
from seeddelta.gguf.source import open_source
from seeddelta.sparsify import permute
from seeddelta.sparsify.permute import block_order
from tiny_llama import N_FF, N_LAYERS, write_experts, write_llama

pytest.importorskip("llama_cpp")


def test_planted_blocks_are_found() -> None:
    """Units that are active together, scattered; blocks that do not divide them leave none out."""
    random = np.random.default_rng(0)
    member = random.permutation(np.repeat(np.arange(6), 8))
    active = np.abs(random.normal(size=(400, 6)))[:, member] + 0.1 * np.abs(random.normal(size=(400, 48)))
    active -= active.mean(axis=0)
    together = active.T @ active
    found = member[block_order(together, 8)].reshape(6, 8)
    assert (found == found[:, :1]).all()
    assert sorted(block_order(together, 10)) == list(range(48))


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "permute-llama.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def covariance(model: Path, model_dir: Path) -> Path:
    text = model_dir / "permute.txt"
    text.write_text(TEXT * 4)
    path = model_dir / "permute.cov.gguf"
    write_covariance(path, capture(model, text, ctx=64, targets="ffn_down", threads=1, progress=False))
    return path


def test_the_model_stays_the_same(model: Path, covariance: Path, tmp_path: Path) -> None:
    path = tmp_path / "permuted.gguf"
    orders = permute(model, path, covariance, block=16)
    before, after = open_source(model), open_source(path)
    assert before.tensors.keys() == after.tensors.keys()
    assert len(orders) == N_LAYERS
    for layer, order in orders.items():
        assert sorted(order) == list(range(N_FF))
        assert list(order) != sorted(order)
        for name in ("gate", "up"):
            key = f"blk.{layer}.ffn_{name}.weight"
            np.testing.assert_array_equal(after.matrix(key), before.matrix(key)[order])
        key = f"blk.{layer}.ffn_down.weight"
        np.testing.assert_array_equal(after.matrix(key), before.matrix(key)[:, order])
    for name in ("blk.0.attn_q.weight", "token_embd.weight", "blk.1.ffn_norm.weight"):
        np.testing.assert_array_equal(after.raw(name), before.raw(name))
    first, second = load_small(model, 1), load_small(path, 1)
    tokens = tokens_of(first, 20)
    logits = logits_of(first, tokens)
    np.testing.assert_allclose(logits_of(second, tokens), logits, atol=2e-2 * np.abs(logits).max())
    assert divergence(logits, logits_of(second, tokens)) < 1e-4


def test_command(model: Path, covariance: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.gguf"
    assert main(["permute", "-m", str(model), "-o", str(path), "--hessian", str(covariance), "--block", "32"]) == 0
    assert f"{N_LAYERS} layers in blocks of 32" in capfd.readouterr().out
    assert main(["permute", "-m", str(model), "-o", str(path), "--hessian", str(covariance), "--block", "1"]) == 1
    assert "give 2 or more" in capfd.readouterr().err


def test_models_that_do_not_fit(model: Path, covariance: Path, smollm2_quantized: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    with pytest.raises(SourceModelError, match=r"start from an F16 model"):
        permute(smollm2_quantized, path, covariance)
    with pytest.raises(SourceModelError, match="no layer has the matrix ffn_down"):
        permute(write_experts(tmp_path / "experts.gguf", smollm2_quantized, "llama"), path, covariance)
    recipe = seeddelta.Recipe(input=model, output=tmp_path / "m.gguf", bits=3, no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    with pytest.raises(ConfigError, match="before a SeedΔ file is built"):
        permute(recipe.output, path, covariance)
    assert not path.exists()
