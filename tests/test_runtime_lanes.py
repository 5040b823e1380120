"""Byte lanes inside llama.cpp: random codes, some of experts, give the logits of what they stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import seeddelta
from lane_models import write_lanes
from llama_helpers import assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of
from seeddelta import RuntimeConfig, _core
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta

pytest.importorskip("llama_cpp")

from tiny_llama import write_experts, write_llama

TOLERANCE = 1e-3  # nats; what rounding the activations to 8 bits makes


@pytest.fixture(scope="module", params=["llama", "qwen2moe"])
def model(request: pytest.FixtureRequest, smollm2_quantized: Path, model_dir: Path) -> Path:
    """All matrices in turns of all codes; beside it `.f32` with what they stand for."""
    dense = model_dir / f"lanes-{request.param}.gguf"
    if request.param == "llama":
        write_llama(dense, smollm2_quantized)
    else:
        write_experts(dense, smollm2_quantized, request.param)
    names = [name for name, info in read_header(dense).tensors.items() if len(info.shape) > 1 and "inp" not in name]
    codes = [code.number for code in _core.lane_codes()]
    numbers = {name: codes[i % len(codes)] for i, name in enumerate(names)}
    path = write_lanes(dense, dense.with_suffix(".sd"), numbers, scaled=True)
    seeddelta.dequantize(path, path.with_suffix(".f32"), type="f32", progress=False)
    return path


def test_serves_what_the_file_stands_for(model: Path) -> None:
    ours, stock = load_small(model), load_small(model.with_suffix(".f32"))
    tokens = tokens_of(ours, 40)
    expected, logits = logits_of(stock, tokens), logits_of(ours, tokens)
    one_by_one = logits_of(ours, tokens[:12], batch=1)
    small = logits_of(ours, tokens[:12], batch=3)
    for got in (logits, one_by_one, small):
        each = [divergence(e[None], o[None]) for e, o in zip(expected, got, strict=False)]
        assert np.median(each) < TOLERANCE
    assert float(expected.std()) > 0.1  # the logits say something

    metrics = ours.seeddelta.metrics()
    with open_seeddelta(model) as file:
        assert metrics["seeddelta.weights"] == len(file.tensors)
    assert metrics["seeddelta.calls.lanes"] == metrics["seeddelta.calls"] > 0
    assert metrics["seeddelta.dense_calls"] == 0
    assert metrics["seeddelta.rows"] == len(tokens) + 24  # of the embedding
    before = metrics["seeddelta.calls.lanes"]
    ours.create_completion("The capital", max_tokens=2, temperature=0)
    assert ours.seeddelta.metrics()["seeddelta.calls.lanes"] > before


def test_instruction_sets_change_nothing(model: Path) -> None:
    """Prompts and batches, those that matrix registers multiply (`amx`, more than four tokens) among them."""
    active = _core.isa_active()
    ours = load_small(model, config=RuntimeConfig(attention="llama"))  # ours is not for all of them
    tokens = tokens_of(ours, 40)
    found = {}
    try:
        for isa in _core.isa_available():
            _core.isa_select(isa)
            assert _core.isa_active() == isa
            before = ours.seeddelta.metrics()["seeddelta.calls.lanes"]
            found[isa] = np.concatenate([logits_of(ours, tokens), logits_of(ours, tokens[:12], batch=3)])
            assert ours.seeddelta.metrics()["seeddelta.calls.lanes"] > before
    finally:
        _core.isa_select(active)
    for isa, logits in found.items():
        np.testing.assert_array_equal(logits, found[active], err_msg=isa)


def test_threads_change_nothing(model: Path) -> None:
    assert_threads_change_nothing(model)
