"""The real model with every matrix converted, the tied embedding too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import seeddelta
from llama_helpers import divergence, load, logits_of, perplexity_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.evaluate.files import file_size

pytestmark = pytest.mark.slow

pytest.importorskip("llama_cpp")

EMBEDDING = "token_embd.weight"


def test_equals_the_dequantized_model(smollm2_full: Path, tmp_path: Path) -> None:
    dense = seeddelta.dequantize(smollm2_full, tmp_path / "dense.gguf", progress=False)
    ours, stock = load(smollm2_full), load(dense)
    tokens = tokens_of(ours, 300)
    a, b = logits_of(ours, tokens), logits_of(stock, tokens)
    assert divergence(b, a) < 2e-3
    assert perplexity_of(a, tokens, 64) == pytest.approx(perplexity_of(b, tokens, 64), rel=5e-3)
    counters = ours.seeddelta.counters()
    assert set(counters) == set(ours.seeddelta.tensors)
    assert len(counters) == 30 * 7 + 1
    assert (counters[EMBEDDING]["rows"], counters[EMBEDDING]["calls"], counters[EMBEDDING]["tokens"]) == (300, 1, 300)
    assert all(counts["calls"] == 1 for counts in counters.values())
    one = logits_of(ours, tokens[:2], batch=1)
    np.testing.assert_array_equal(one[0], a[0])


def test_sizes(
    smollm2_full: Path, smollm2_seeddelta: Path, smollm2_f16: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bits of the blocks do not tell of the embedding, those of the whole model do."""
    full, blocks, dense = (file_size(path) for path in (smollm2_full, smollm2_seeddelta, smollm2_f16))
    assert full.weights == blocks.weights == dense.weights
    assert full.block_weights == blocks.block_weights == dense.block_weights
    assert full.bits_per_weight == blocks.bits_per_weight
    assert dense.model_bits_per_weight == pytest.approx(16, abs=0.01)  # norms are F32
    embedding = 49152 * 576
    assert full.bits_per_weight is not None
    assert full.model_bits_per_weight is not None
    assert blocks.model_bits_per_weight is not None
    assert 4.0 < full.bits_per_weight < 4.06
    norms = 16 * 61 * 576 / full.weights  # what F32 takes beyond F16
    expected = (full.bits_per_weight * full.block_weights + 16 * embedding) / full.weights
    assert blocks.model_bits_per_weight == pytest.approx(expected + norms, abs=0.01)
    expected = (full.bits_per_weight * full.block_weights + 5.04 * embedding) / full.weights  # one step more
    assert full.model_bits_per_weight == pytest.approx(expected + norms, abs=0.02)
    assert main(["inspect", str(smollm2_full)]) == 0
    assert f" {full.model_bits_per_weight:.3f} over all weights" in capsys.readouterr().out
