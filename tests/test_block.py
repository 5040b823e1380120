"""Blocks in NumPy: hidden states and logits are llama.cpp's, gradients are differences, in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_models import CASES, write_case
from seeddelta import _core
from seeddelta.calibrate.block import Block, read_block
from seeddelta.calibrate.block_shape import model_shape
from seeddelta.calibrate.families import ARCHITECTURES
from seeddelta.calibrate.head import Head, read_head
from seeddelta.calibrate.operations import softmax
from seeddelta.errors import NotAvailableError
from seeddelta.gguf.source import SourceModel, open_source
from tiny_llama import write_gpt_oss

TOKENS = np.random.default_rng(0).integers(260, 500, 24).astype(np.int32)
_GELU = {"gemma", "gemma2", "gemma3", "starcoder2"}  # llama.cpp looks GELU up in a table of float16
Write = Callable[[str], Path]


@pytest.fixture(scope="module")
def write(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Write:
    folder = tmp_path_factory.mktemp("blocks")
    return cache(lambda name: write_case(name, folder, smollm2_quantized))


class Model:
    """All blocks of a model in memory, in float64 where `precise`."""

    def __init__(self, path: Path, *, precise: bool = False) -> None:
        source = open_source(path)
        self.shape = model_shape(source, len(TOKENS))
        self.embedding = self.shape.embedding_scale * source.matrix("token_embd.weight")
        self.blocks = [read_block(source, self.shape, layer) for layer in range(self.shape.layers)]
        self.head = read_head(source, self.shape)
        if precise:
            wide = {name: None if x is None else x.astype(np.float64) for name, x in vars(self.head).items()
                    if name != "shape"}  # fmt: skip
            self.head, self.embedding = Head(self.shape, **wide), self.embedding.astype(np.float64)
            self.blocks = [Block(b.shape, {n: w.astype(np.float64) for n, w in b.w.items()}) for b in self.blocks]

    def forward(self, tokens: Any) -> tuple[list[Any], list[Any]]:
        states, backs = [self.embedding[tokens]], []
        for block in self.blocks:
            x, back = block.forward(states[-1])
            states.append(x)
            backs.append(back)
        return states, backs

    def logits(self, x: Any, first: int = 0) -> Any:
        """Of the hidden states before the block `first`."""
        for block in self.blocks[first:]:
            x, _ = block.forward(x)
        return self.head.logits(self.head.normalized(x)[0])[0]


def llama_cpp_of(path: Path, layers: int) -> tuple[list[Any], Any]:
    """Hidden states after every block, and logits, with a cache in float32."""
    from seeddelta.runtime.contexts import evaluation_callback
    from seeddelta.runtime.library import loaded_ggml
    from seeddelta.session.decoder import Decoder

    llama_cpp = pytest.importorskip("llama_cpp")
    hook = _core.CaptureHook(loaded_ggml(), [], False, taken=[f"l_out-{layer}" for layer in range(layers)])
    n = len(TOKENS)
    with evaluation_callback(hook):
        llm = llama_cpp.Llama(
            str(path), n_ctx=n, n_batch=n, n_ubatch=n, n_threads=1, logits_all=True, verbose=False,
            type_k=0, type_v=0, flash_attn=False,
        )  # fmt: skip
    try:
        logits = np.array(Decoder(llm).decode(TOKENS, 0, slice(0, n)))
        assert not hook.error
        return [hook.values(f"l_out-{layer}") for layer in range(layers)], logits
    finally:
        llm.close()


def difference(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_every_architecture_has_a_case() -> None:
    assert {case.get("of", name) for name, case in CASES.items()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_states_and_logits_are_those_of_llama_cpp(name: str, write: Write) -> None:
    model = Model(write(name))
    states, logits = llama_cpp_of(write(name), model.shape.layers)
    own = model.forward(TOKENS)[0]
    most = 1e-3 if name in _GELU else 2e-5
    assert all(x.dtype == np.float32 for x in own)
    assert max(map(difference, own[1:], states)) < most
    assert difference(model.logits(own[-1], model.shape.layers), logits) < most


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name: str, write: Write) -> None:
    """Every output of a matrix is moved by something of its own, as a bias does, and every weight of a norm changed."""
    model, random = Model(write(name), precise=True), np.random.default_rng(1)
    states, backs = model.forward(TOKENS)
    dx, _ = model.head.gradient(states[-1], np.random.default_rng(2))
    logits = model.logits(states[0])
    noise = np.random.default_rng(2).random(logits.shape, np.float32)
    labels = (logits - np.log(-np.log(noise + np.float32(1e-12)))).argmax(-1)

    def loss(layer: int) -> float:
        p = softmax(model.logits(states[layer], layer))
        return float(-np.log(p[np.arange(len(labels)), labels]).sum())

    for layer in reversed(range(model.shape.layers)):
        found: dict[str, Any] = {}
        dx = backs[layer](dx, lambda kind, g, y, x, found=found: found.__setitem__(kind, (g, y)))
        if layer not in (0, 3, model.shape.layers - 1):
            continue
        weights = model.blocks[layer].w
        told = {one for one in weights if "." not in one and "_exps" not in one and one != "ffn_gate_inp_shexp"}
        assert set(found) == told
        for kind, (gradient, y) in found.items():
            at = kind if "norm" in kind else f"{kind}.bias"
            own = weights.get(at, np.float64(0))
            step = 1e-6 * random.normal(size=own.shape if "norm" in kind else y.shape)
            values = []
            for sign in (1, -1):
                weights[at] = own * np.exp(sign * step) if "norm" in kind else own + sign * step
                values.append(loss(layer))
            weights[at] = own
            expected = float((gradient * (y * step if "norm" in kind else step)).sum())
            assert (values[0] - values[1]) / 2 == pytest.approx(expected, rel=1e-5, abs=1e-10), (layer, kind)


def test_other_models_are_refused(smollm2_quantized: Path, tmp_path: Path) -> None:
    def refused(model: Path | SourceModel, ctx: int = 64) -> str:
        source = open_source(model) if isinstance(model, Path) else model
        with pytest.raises(NotAvailableError) as error:
            model_shape(source, ctx)
        return str(error.value)

    def case(name: str, **more: Any) -> Path:
        return write_case(name, tmp_path, smollm2_quantized, {key.replace("__", "."): v for key, v in more.items()})

    assert "not for gpt-oss" in refused(write_gpt_oss(tmp_path / "oss.gguf", smollm2_quantized))
    for name in ("blk.0.attn_gate.weight", "blk.0.ffn_down_exps.bias", "cls.weight", "blk.0.attn_q.bias"):
        source = open_source(case("phi3"))  # of which attn_q is a part of attn_qkv
        source.tensors[name] = replace(source.tensors["output.weight"], name=name)
        assert f"which has no {name!r}" in refused(source)
    assert "without groups of experts" in refused(case("qwen3moe", expert_group_count=2))
    assert "not of ntk" in refused(case("llama", rope__scaling__type="ntk"))
    assert "attention.head_count_kv is one number" in refused(case("llama", attention__head_count_kv=[2, 1]))
    assert "share keys" in refused(case("llama", attention__head_count_kv=3))
    assert "rope.dimension_sections" in refused(case("qwen3vl", rope__dimension_sections=[4, 4]))
    assert "the same, even size" in refused(case("qwen3", attention__value_length=32))
    assert "do not depend on the position in 65 tokens" in refused(case("mistral3"), 65)
