"""Token embedding and output matrix from the SeedΔ file, tied or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from llama_helpers import assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of, with_base_scale
from seeddelta import _core
from seeddelta.errors import NumericalError
from seeddelta.gguf.schema import lane_code

pytest.importorskip("llama_cpp")

from ggml_graph import F16, F32, I32, Graph
from seeddelta.runtime import RuntimeConfig, library
from tiny_llama import N_EMBD, write_llama

EMBEDDING, HEAD = "token_embd.weight", "output.weight"


@pytest.fixture(scope="module", params=["tied", "untied"])
def model(request: pytest.FixtureRequest, smollm2_quantized: Path, model_dir: Path) -> Path:
    """An original model; beside it `.sd` with every matrix converted, and `.f32` with what those stand for."""
    path = model_dir / f"rows-{request.param}.gguf"
    write_llama(path, smollm2_quantized, tied=request.param == "tied")
    recipe = seeddelta.Recipe(input=path, output=path.with_suffix(".sd"), targets="full")
    seeddelta.build(recipe, progress=False)
    seeddelta.dequantize(recipe.output, path.with_suffix(".f32"), type="f32", progress=False)
    return path


def test_equals_the_dequantized_model(model: Path) -> None:
    ours, stock = load_small(model.with_suffix(".sd")), load_small(model.with_suffix(".f32"))
    tokens = tokens_of(ours, 100)
    logits = logits_of(ours, tokens)
    assert divergence(logits_of(stock, tokens), logits) < 1e-3
    counters = ours.seeddelta.counters()
    product = counters[EMBEDDING if model.stem == "rows-tied" else HEAD]
    assert counters[EMBEDDING]["rows"] == 100
    assert (product["calls"], product["tokens"], product["reused"]) == (1, 100, 0)
    assert counters["blk.0.attn_q.weight"]["rows"] == 0
    assert ours.seeddelta.metrics()["seeddelta.rows"] == 100
    np.testing.assert_array_equal(logits_of(ours, tokens, batch=1)[:1], logits[:1])
    assert ours.seeddelta.counters()[EMBEDDING]["rows"] == 200


def test_threads_change_nothing(model: Path) -> None:
    assert_threads_change_nothing(model.with_suffix(".sd"))


def test_dense_from_the_start(model: Path) -> None:
    config = RuntimeConfig(dense=(EMBEDDING, HEAD), fallback=model)
    llm = load_small(model.with_suffix(".sd"), config=config)
    tokens = tokens_of(llm, 20)
    blocks_only = model.with_suffix(".blocks")
    seeddelta.build(seeddelta.Recipe(input=model, output=blocks_only, targets="all"), progress=False)
    np.testing.assert_array_equal(logits_of(llm, tokens), logits_of(load_small(blocks_only), tokens))


@pytest.mark.parametrize("with_fallback", [False, True])
def test_overflow(model: Path, tmp_path: Path, with_fallback: bool) -> None:
    path = with_base_scale(model.with_suffix(".sd"), tmp_path / "overflow.gguf", EMBEDDING, 3e38)
    llm = load_small(path, fallback=model if with_fallback else None)
    tokens = tokens_of(llm, 20)
    if not with_fallback:
        with pytest.raises(NumericalError, match=rf"{EMBEDDING}.*result.*fallback"):
            logits_of(llm, tokens)
        return
    healthy = load_small(model.with_suffix(".sd"), config=RuntimeConfig(dense=(EMBEDDING,), fallback=model))
    expected = logits_of(healthy, tokens)
    for _ in range(2):  # the second time the weight is dense from the first node on
        assert divergence(expected, logits_of(llm, tokens)) < 1e-5
    counts = llm.seeddelta.counters()[EMBEDDING]
    assert (counts["nonfinite_events"], counts["rows"]) == (1, 40)
    assert counts["dense_calls"] == counts["rewrites"]


N_ROWS = 100


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph()
    yield graph
    graph.close()


@pytest.fixture(scope="module")
def weight() -> _core.Weight:
    rows = np.random.default_rng(5).normal(0, 1, (N_ROWS, N_EMBD)).astype(np.float32)
    code = lane_code(8)
    codes, scale = _core.lanes_encode(rows, code=code, groups=[code.stream_steps(N_EMBD)], rotation_block=32, seed=3)
    return _core.Weight(
        "w", N_ROWS, N_EMBD, base_kind=2, base_seed=3, base_scale=1 / code.deviation, lane_code=code.number,
        rotation_block=32, arrays={"codes": codes, "row_scale": scale},
    )  # fmt: skip


@pytest.fixture
def hook(weight: _core.Weight) -> _core.GraphHook:
    registry = _core.WeightRegistry(library.loaded_ggml())
    registry.add(weight)
    return _core.GraphHook(registry)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_by_number(graph: Graph, hook: _core.GraphHook, weight: _core.Weight, threads: int) -> None:
    w = graph.tensor(F16, N_EMBD, N_ROWS, name="w")
    ids = np.array([3, 99, 0, 17, 16, 15, 3], np.int32)
    rows = graph.op("get_rows", w, graph.tensor(I32, ids.size, data=ids))
    graph.compute(hook, rows, threads=threads)
    result = graph.array(rows, F32, N_EMBD, ids.size)
    np.testing.assert_array_equal(result, weight.dequantize()[ids])
    assert hook.take_error() is None
    result[:] = 0
    graph.compute(hook, rows, threads=threads)  # the node is ours by now
    np.testing.assert_array_equal(result, weight.dequantize()[ids])
    assert hook.counters()["w"]["rows"] == 2 * ids.size


def test_rows_that_are_not_there(graph: Graph, hook: _core.GraphHook, weight: _core.Weight) -> None:
    w = graph.tensor(F16, N_EMBD, N_ROWS, name="w")
    ids = np.array([-1, 5, N_ROWS, 1 << 30], np.int32)
    rows = graph.op("get_rows", w, graph.tensor(I32, ids.size, data=ids))
    result = graph.array(rows, F32, N_EMBD, ids.size)
    result[:] = 7
    graph.compute(hook, rows)
    np.testing.assert_array_equal(result[1], weight.dequantize(5, 6)[0])
    assert not result[[0, 2, 3]].any()
    error = hook.take_error()
    assert error is not None
    assert error == ("bad_index", "w", "tensor 'w' is asked for a row or an expert that it does not have")


def test_ids_inside_another_tensor(graph: Graph, hook: _core.GraphHook, weight: _core.Weight) -> None:
    w = graph.tensor(F16, N_EMBD, N_ROWS, name="w")
    ids = graph.tensor(I32, 8, data=np.arange(8, dtype=np.int32) * 3)
    part = graph.op("get_rows", w, graph.view(ids, 4, 1, 32, 8))
    graph.compute(hook, part)
    np.testing.assert_array_equal(graph.array(part, F32, N_EMBD, 4), weight.dequantize()[[6, 9, 12, 15]])
    assert hook.take_error() is None


def test_other_operations_are_refused(graph: Graph, hook: _core.GraphHook) -> None:
    w = graph.tensor(F32, N_EMBD, N_ROWS, name="w", data=np.zeros((N_ROWS, N_EMBD), np.float32))
    graph.compute(hook, graph.op("add", w, w))
    assert hook.take_error() == ("not_served", "w", "tensor 'w' is used by ADD, node 'node_0', which is not served")
