"""Column layout in llama.cpp: what is computed is what the file stands for, and it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import seeddelta
from llama_helpers import assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of
from tiny_llama import N_LAYERS, write_llama

pytest.importorskip("llama_cpp")


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "columns-llama.gguf", smollm2_quantized)


def test_serves_what_the_file_stands_for(model: Path, tmp_path: Path) -> None:
    """Some matrices in columns, others in rows: they share inputs, and must not share prepared ones."""
    recipe = seeddelta.Recipe(
        input=model,
        output=tmp_path / "m.gguf",
        column_tensor=["ffn_down", "ffn_gate", "attn_k"],
        bits=3,
        targets="all",
        no_checkpoint=True,
    )
    seeddelta.build(recipe, progress=False)
    llm = load_small(recipe.output)
    tokens = tokens_of(llm, 40)
    ours = logits_of(llm, tokens)
    assert divergence(ours, logits_of(llm, tokens, batch=1)) < 0.005
    stock = load_small(seeddelta.dequantize(recipe.output, tmp_path / "dense.gguf", progress=False))
    dense = load_small(model)
    expected, before = logits_of(stock, tokens), logits_of(dense, tokens)
    assert divergence(expected, ours) < 0.1 * divergence(before, ours)
    stock.close()
    dense.close()

    start = llm.seeddelta.metrics()
    reply = llm.create_completion("The capital of France is", max_tokens=4, temperature=0)
    decodes = reply["usage"]["completion_tokens"]
    assert decodes > 0
    after = llm.seeddelta.metrics()
    ran = after["seeddelta.calls.columns_trellis"] - start["seeddelta.calls.columns_trellis"]
    assert ran == 3 * N_LAYERS * decodes
    assert after["seeddelta.calls.trellis"] - start["seeddelta.calls.trellis"] == 4 * N_LAYERS * decodes
    assert after["seeddelta.dense_calls"] == after["seeddelta.nonfinite_events"] == 0
    llm.close()


def test_threads_change_nothing(model: Path, tmp_path: Path) -> None:
    recipe = seeddelta.Recipe(input=model, output=tmp_path / "m.gguf", layout="column", no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    assert_threads_change_nothing(recipe.output)
