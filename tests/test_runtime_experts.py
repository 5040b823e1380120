"""Experts, shared experts and fused matrices from the SeedΔ file, in llama.cpp's own graphs and alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of, with_base_scale
from seeddelta import _core
from seeddelta.errors import NumericalError
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.schema import lane_code
from seeddelta.gguf.source import open_source

pytest.importorskip("llama_cpp")

from ggml_graph import F16, F32, I32, Graph
from seeddelta.runtime import RuntimeConfig, library
from tiny_llama import N_EXPERT, N_LAYERS, N_USED, write_experts, write_phi3
from weights import weight_of

EXPERTS = [f"blk.{layer}.ffn_{name}_exps.weight" for layer in range(N_LAYERS) for name in ("gate", "up", "down")]


@pytest.fixture(scope="module", params=["llama", "qwen2moe", "phi3"])
def any_model(request: pytest.FixtureRequest, smollm2_quantized: Path, model_dir: Path) -> Path:
    """An original model; beside it `.sd` with every matrix converted, and `.f32` with what those stand for."""
    path = model_dir / f"experts-{request.param}.gguf"
    if request.param == "phi3":
        write_phi3(path, smollm2_quantized)
    else:
        write_experts(path, smollm2_quantized, request.param)
    recipe = seeddelta.Recipe(input=path, output=path.with_suffix(".sd"), targets="full")
    seeddelta.build(recipe, progress=False)
    seeddelta.dequantize(recipe.output, path.with_suffix(".f32"), type="f32", progress=False)
    return path


@pytest.fixture(scope="module")
def model(any_model: Path) -> Path:
    if "phi3" in any_model.name:
        pytest.skip("has no experts")
    return any_model


def assert_equal_enough(expected: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> None:
    """A token between two experts may go to the other one when its activations are rounded; most do not."""
    tokens = [divergence(e[None], ours[None]) for e, ours in zip(expected, logits, strict=True)]
    assert np.median(tokens) < 1e-3
    assert np.mean(tokens) < 0.05


def test_equals_the_dequantized_model(any_model: Path) -> None:
    ours, stock = load_small(any_model.with_suffix(".sd")), load_small(any_model.with_suffix(".f32"))
    tokens = tokens_of(ours, 100)
    logits = logits_of(ours, tokens)
    assert_equal_enough(logits_of(stock, tokens), logits)
    counters = ours.seeddelta.counters()
    assert all(count["calls"] == 1 for name, count in counters.items() if name != "token_embd.weight")
    assert counters["token_embd.weight"]["rows"] == 100
    assert not ours.seeddelta.dense
    single = logits_of(ours, tokens[:20], batch=1)
    assert_equal_enough(logits_of(stock, tokens[:20], batch=1), single)


def test_what_is_converted(any_model: Path) -> None:
    with seeddelta.gguf.reader.open_seeddelta(any_model.with_suffix(".sd")) as file:
        names = {name.removeprefix("blk.0.").removesuffix(".weight") for name in file.tensors if "blk.1" not in name}
        shapes = {name: tensor.description.tensor_shape for name, tensor in file.tensors.items()}
        source = {name: info.shape for name, info in read_header(any_model).tensors.items()}
    attention = {"attn_q", "attn_k", "attn_v", "attn_output", "output", "token_embd"}
    experts = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}
    assert (
        names
        == {
            "experts-phi3": {"attn_qkv", "attn_output", "ffn_up", "ffn_down", "output", "token_embd"},
            "experts-llama": attention | experts,
            "experts-qwen2moe": attention | experts | {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"},
        }[any_model.stem]
    )
    assert shapes == {name: source[name] for name in shapes}


def test_counters(model: Path) -> None:
    llm = load_small(model.with_suffix(".sd"))
    logits_of(llm, tokens_of(llm, 100))
    first = {name: llm.seeddelta.counters()[name] for name in EXPERTS}
    for name, counts in first.items():
        assert (counts["calls"], counts["tokens"]) == (1, 100 * N_USED)
        assert 1 < counts["experts"] <= N_EXPERT  # each once, though a hundred tokens chose it
        # gate and up read the same inputs for the same experts
        assert counts["reused"] == (1 if "up" in name else 0), name
    logits_of(llm, tokens_of(llm, 1))
    for name, counts in first.items():
        now = llm.seeddelta.counters()[name]
        assert now["experts"] - counts["experts"] == N_USED
        assert now["tokens"] - counts["tokens"] == N_USED
    assert llm.seeddelta.metrics()["seeddelta.experts"] == sum(c["experts"] for c in llm.seeddelta.counters().values())


def test_threads_change_nothing(any_model: Path) -> None:
    assert_threads_change_nothing(any_model.with_suffix(".sd"))


def test_dense_from_the_start(model: Path) -> None:
    config = RuntimeConfig(dense=("blk.*_exps.weight",), fallback=model)
    llm = load_small(model.with_suffix(".sd"), config=config)
    assert set(llm.seeddelta.dense) == set(EXPERTS)
    tokens = tokens_of(llm, 20)
    others = model.with_suffix(".others")
    targets = "attn,ffn_gate_shexp,ffn_up_shexp,ffn_down_shexp,embd,head"
    seeddelta.build(seeddelta.Recipe(input=model, output=others, targets=targets), progress=False)
    np.testing.assert_array_equal(logits_of(llm, tokens), logits_of(load_small(others), tokens))


@pytest.mark.parametrize("name", ["blk.0.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"])
@pytest.mark.parametrize("with_fallback", [False, True])
def test_overflow(model: Path, tmp_path: Path, name: str, with_fallback: bool) -> None:
    path = with_base_scale(model.with_suffix(".sd"), tmp_path / "overflow.gguf", name, 3e38)
    llm = load_small(path, fallback=model if with_fallback else None)
    tokens = tokens_of(llm, 20)
    if not with_fallback:
        with pytest.raises(NumericalError, match=rf"{name}.*result.*fallback"):
            logits_of(llm, tokens)
        return
    healthy = load_small(model.with_suffix(".sd"), config=RuntimeConfig(dense=(name,), fallback=model))
    expected = logits_of(healthy, tokens)
    for _ in range(2):  # the second time the weight is dense from the first node on
        assert_equal_enough(expected, logits_of(llm, tokens))
    counts = llm.seeddelta.counters()[name]
    assert counts["nonfinite_events"] == 1
    assert counts["dense_calls"] == counts["rewrites"] == 2


N_IN, N_OUT = 64, 40


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph()
    yield graph
    graph.close()


def experts(scheme: str, base_scale: float | None = None) -> _core.Weight:
    """Random experts, with scales of the columns, or a residual of scheme coo or block."""
    rng = np.random.default_rng(7)
    rows = rng.normal(0, 0.1, (N_EXPERT, N_OUT, N_IN)).astype(np.float32)
    code = lane_code(8)
    groups = [code.stream_steps(N_IN)]
    parts = [_core.lanes_encode(one, code=code, groups=groups, rotation_block=32, seed=3) for one in rows]
    residual: dict[str, Any] = {}
    if scheme == "columns":
        residual = {"column_scale": rng.integers(-20, 20, N_EXPERT * N_IN).astype(np.int8)}
    if scheme == "coo":
        index = np.sort(rng.permuted(np.tile(np.arange(N_IN, dtype=np.uint16), (N_EXPERT * N_OUT, 1)), axis=1)[:, :5])
        residual = {"d_idx": index, "d_val": rng.normal(0, 1, index.shape).astype(np.float16)}
    if scheme == "block":
        values = rng.integers(-127, 128, (N_EXPERT * N_OUT, 1, 32)).astype(np.int8)
        residual = {
            "b_map": rng.integers(0, 2, (N_EXPERT * N_OUT, 1)).astype(np.uint16), "b_val": values,
            "b_scale": rng.uniform(0, 0.02, (N_EXPERT * N_OUT, 1)).astype(np.float16),
        }  # fmt: skip
    return _core.Weight(
        "w", N_OUT, N_IN, n_experts=N_EXPERT, base_kind=2, base_seed=3, base_scale=base_scale or 1 / code.deviation,
        lane_code=code.number, rotation_block=32,
        arrays={
            "codes": np.concatenate([part[0] for part in parts]),
            "row_scale": np.concatenate([part[1] for part in parts]), **residual,
        },
    )  # fmt: skip


def hook_of(weight: _core.Weight) -> _core.GraphHook:
    registry = _core.WeightRegistry(library.loaded_ggml())
    registry.add(weight)
    return _core.GraphHook(registry)


@pytest.mark.parametrize("scheme", ["none", "columns", "coo", "block"])
@pytest.mark.parametrize(("used", "inputs"), [(1, 1), (3, 1), (4, 4), (4, 2)])
@pytest.mark.parametrize(("tokens", "threads"), [(1, 1), (1, 3), (9, 1), (70, 3)])
def test_products(graph: Graph, scheme: str, used: int, inputs: int, tokens: int, threads: int) -> None:
    """The same bits as each expert's own product."""
    weight = experts(scheme)
    hook = hook_of(weight)
    rng = np.random.default_rng(tokens)
    x = rng.normal(0, 1, (tokens, inputs, N_IN)).astype(np.float32)
    chosen = np.array([rng.permutation(N_EXPERT) for _ in range(tokens)], np.int32)
    ids = graph.tensor(I32, N_EXPERT, tokens, data=chosen)
    first = graph.view(ids, used, tokens, 4 * N_EXPERT, 0)  # as llama.cpp cuts the best of a sorted list
    w = graph.tensor(F16, N_IN, N_OUT, N_EXPERT, name="w")
    y = graph.op("mul_mat_id", w, graph.tensor(F32, N_IN, inputs, tokens, data=x), first)
    graph.compute(hook, y, threads=threads)
    assert hook.take_error() is None
    result = graph.array(y, F32, N_OUT, used, tokens)
    for token in range(tokens):
        for slot in range(used):
            own = weight.matmul(x[token, slot % inputs][None], expert=int(chosen[token, slot]))
            np.testing.assert_array_equal(result[token, slot], own[0])
    counts = hook.counters()["w"]
    assert (counts["calls"], counts["tokens"]) == (1, tokens * used)
    assert counts["experts"] == np.unique(chosen[:, :used]).size
    result[:] = 0
    graph.compute(hook, y, threads=threads)  # the node is ours by now
    assert hook.counters()["w"]["calls"] == 2
    assert result.any()


@pytest.mark.parametrize("scheme", ["columns", "coo"])
def test_rows_of_all_experts(scheme: str) -> None:
    weight = experts(scheme)
    dense = weight.dequantize()
    assert dense.shape == (N_EXPERT * N_OUT, N_IN)
    np.testing.assert_array_equal(weight.dequantize(35, 95), dense[35:95])
    x = np.random.default_rng(0).normal(0, 1, (3, N_IN)).astype(np.float32)
    for expert in range(N_EXPERT):
        rows = dense[expert * N_OUT : (expert + 1) * N_OUT]
        np.testing.assert_allclose(weight.matmul(x, expert=expert), x @ rows.T, atol=0.1)
    with pytest.raises(ValueError, match="no expert of that number"):
        weight.matmul(x, expert=N_EXPERT)


def test_experts_that_are_not_there(graph: Graph) -> None:
    weight = experts("none")
    hook = hook_of(weight)
    x = np.ones((2, 1, N_IN), np.float32)
    ids = graph.tensor(I32, 2, 2, data=np.array([[-1, 1], [0, N_EXPERT]], np.int32))
    w = graph.tensor(F16, N_IN, N_OUT, N_EXPERT, name="w")
    y = graph.op("mul_mat_id", w, graph.tensor(F32, N_IN, 1, 2, data=x), ids)
    result = graph.array(y, F32, N_OUT, 2, 2)
    result[:] = 7
    graph.compute(hook, y)
    assert not result[0, 0].any()
    assert not result[1, 1].any()
    np.testing.assert_array_equal(result[0, 1], weight.matmul(x[0], expert=1)[0])
    np.testing.assert_array_equal(result[1, 0], weight.matmul(x[0], expert=0)[0])
    error = hook.take_error()
    assert error is not None
    assert error == ("bad_index", "w", "tensor 'w' is asked for a row or an expert that it does not have")


@pytest.mark.parametrize("scheme", ["none", "columns", "coo", "block"])
@pytest.mark.parametrize(("tokens", "streams"), [(1, 1), (7, 1), (70, 1), (5, 3)])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_matrix_for_each_head(graph: Graph, scheme: str, tokens: int, streams: int, permuted: bool) -> None:
    """MUL_MAT by several matrices: the same bits as each one's own product, also of a view that is not contiguous."""
    weight = experts(scheme)
    rng = np.random.default_rng(tokens)
    x = rng.normal(0, 1, (streams, N_EXPERT, tokens, N_IN)).astype(np.float32)
    if permuted:  # stored with the heads of a token side by side
        flat = graph.tensor(F32, N_IN, N_EXPERT, tokens, streams, data=x.swapaxes(1, 2))
        input = graph.permute(flat, 0, 2, 1, 3)
    else:
        input = graph.tensor(F32, N_IN, tokens, N_EXPERT, streams, data=x)
    for threads in (1, 3):
        hook = hook_of(weight)
        w = graph.tensor(F16, N_IN, N_OUT, N_EXPERT, name="w")
        y = graph.op("mul_mat", w, input)
        graph.compute(hook, y, threads=threads)
        assert hook.take_error() is None
        result = graph.array(y, F32, N_OUT, tokens, N_EXPERT, streams).copy()
        for stream, head in np.ndindex(streams, N_EXPERT):
            np.testing.assert_array_equal(result[stream, head], weight.matmul(x[stream, head], expert=head))
        counts = hook.counters()["w"]
        assert (counts["calls"], counts["tokens"], counts["experts"]) == (1, tokens * N_EXPERT * streams, N_EXPERT)
        graph.compute(hook, y, threads=threads)  # the node is ours by now
        np.testing.assert_array_equal(graph.array(y, F32, N_OUT, tokens, N_EXPERT, streams), result)
        assert hook.counters()["w"]["calls"] == 2


def test_heads_from_the_fallback(graph: Graph, model: Path, tmp_path: Path) -> None:
    name, rng = "blk.0.ffn_up_exps.weight", np.random.default_rng(1)
    original = open_source(model)
    count, n_out, n_in = original.tensors[name].shape
    dense = original.matrix(name).reshape(count, n_out, n_in)
    x = rng.normal(0, 1, (count, 3, n_in)).astype(np.float32)
    path = with_base_scale(model.with_suffix(".sd"), tmp_path / "overflow.gguf", name, 3e38)
    served = _core.ServedModel(path, library.loaded_ggml(), _core.Options({"fallback": os.fsencode(model)}))
    hook = _core.GraphHook(served.registry)
    w = graph.tensor(F16, n_in, n_out, count, name=name)
    y = graph.op("mul_mat", w, graph.tensor(F32, n_in, 3, count, data=x))
    expected = np.einsum("hoi,hti->hto", dense, x)
    for calls in (1, 2):  # the second time the weight is dense from the start
        graph.compute(hook, y)
        assert hook.take_error() is None
        assert hook.counters()[name]["dense_calls"] == calls
        np.testing.assert_allclose(graph.array(y, F32, n_out, 3, count), expected, rtol=1e-5, atol=1e-4)
    assert hook.counters()[name]["nonfinite_events"] == 1


def test_other_uses_are_refused(graph: Graph) -> None:
    """Matrices for heads that share inputs, or experts of another number, are none of the uses."""
    for name, sources in {
        "mul_mat": [graph.tensor(F32, N_IN, 3, 2 * N_EXPERT, data=np.ones(6 * N_EXPERT * N_IN))],
        "mul_mat_id": [
            graph.tensor(F32, N_IN, 1, 3, data=np.ones(3 * N_IN)),
            graph.tensor(I32, 2, 3, data=np.zeros((3, 2))),
        ],
    }.items():
        hook = hook_of(experts("none"))
        count = N_EXPERT if name == "mul_mat" else N_EXPERT - 1
        zeros = np.zeros((count, N_OUT, N_IN), np.float32)
        w = graph.tensor(F32, N_IN, N_OUT, count, name="w", data=zeros)
        graph.compute(hook, graph.op(name, w, *sources))
        error = hook.take_error()
        assert error is not None
        assert error[:2] == ("layout", "w")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_experts": 0}, "n_experts"),
        ({"n_experts": N_EXPERT + 1}, "row_scale|codes"),
        ({"n_experts": N_EXPERT, "base_kind": 0, "codes": None}, "experts have lanes"),
        ({"n_experts": N_EXPERT, "base_kind": 1, "codes": None, "rotation_block": 0}, "experts have lanes"),
    ],
)
def test_what_experts_cannot_be(changes: dict[str, Any], message: str) -> None:
    codes = np.zeros((N_EXPERT * 3, 8, 64), np.uint8)
    arguments: dict[str, Any] = dict(
        base_kind=2, lane_code=8, codes=codes, row_scale=np.ones(N_EXPERT * N_OUT, np.float16)
    )
    with pytest.raises(ValueError, match=message):
        weight_of(N_OUT, N_IN, **arguments | changes)
