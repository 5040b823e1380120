"""Attention by our kernels as the default, and of several tokens and sequences at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

llama_cpp = pytest.importorskip("llama_cpp")

from cache_machine import load_fixture, one_by_one, tiny_fixture  # noqa: E402, F401
from llama_helpers import divergence, logits_of, tokens_of  # noqa: E402
from seeddelta import RuntimeConfig, _core  # noqa: E402
from seeddelta.errors import UnsupportedLlamaError  # noqa: E402
from seeddelta.runtime import attention, library  # noqa: E402
from seeddelta.runtime.contexts import handle_of  # noqa: E402
from test_attention import problem  # noqa: E402
from tiny_llama import N_LAYERS, N_VOCAB, SHORT_LAYERS  # noqa: E402

Array = np.ndarray[Any, Any]
EXACT = RuntimeConfig(attention="exact")
ISAS = _core.isa_available()
Q5_0 = int(GGMLQuantizationType.Q5_0)


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


@pytest.mark.parametrize("shape", [(300, 9, 3, 64, 64), (513, 7, 1, 96, 96), (130, 2, 2, 576, 512)])
@pytest.mark.parametrize("alike", [True, False], ids=["one mask", "masks of their own"])
def test_every_token_of_a_batch_is_as_alone(shape: tuple[int, ...], alike: bool) -> None:
    """Two caches, five tokens in each: the bits of each token alone, everywhere."""
    n_kv, n_head, _, dim_k, _ = shape
    caches = [problem(*shape, seed=seed) for seed in (1, 2)]
    rng = np.random.default_rng(3)
    q = rng.normal(size=(2, 5, n_head, dim_k)).astype(np.float32)
    mask = np.where(rng.random((2, 5, n_kv)) < 0.5, -np.inf, 0).astype(np.float16)
    mask[:, :, 0] = 0
    if alike:
        mask[:] = mask[:, :1]
    k, v = (np.stack([cache[i] for cache in caches]) for i in (1, 2))
    alone = np.stack(
        [
            [_core.AttentionRun()(q[s, i], k[s], v[s], mask[s, i], scale=dim_k**-0.5)[0] for i in range(5)]
            for s in range(2)
        ]
    )
    for isa in ISAS:
        _core.isa_select(isa)
        for threads in (1, 2, 3):
            together = _core.AttentionRun().batch(q, k, v, mask, scale=dim_k**-0.5, threads=threads)
            np.testing.assert_array_equal(together, alone)


def test_bad_batches() -> None:
    q, k, v, mask = problem(64, 4, 2, 32, 32)
    run = _core.AttentionRun()
    good = [q[None, None], k[None], v[None], mask[None, None]]
    run.batch(*good)
    for at, wrong in ((0, q[None]), (1, k[None, :, :, :16].copy()), (2, v[None, :5]), (3, mask[None])):
        with pytest.raises(ValueError, match=r"wanted|four dimensions"):
            run.batch(*[wrong if i == at else one for i, one in enumerate(good)])


def prompt_problem(n_query: int, n_kv: int, n_head: int, n_kv_head: int, dim_k: int, dim_v: int) -> tuple[Array, ...]:
    """Queries of a prompt behind a context, with causal masks; one query has a mask with holes and numbers in it."""
    q, k, v, _ = problem(n_kv, n_head, n_kv_head, dim_k, dim_v, seed=5)
    rng = np.random.default_rng(6)
    q = rng.normal(size=(1, n_query, n_head, dim_k)).astype(np.float32)
    own = n_kv - n_query + np.arange(n_query)
    mask = np.where(np.arange(n_kv) <= own[:, None], 0, -np.inf).astype(np.float16)
    mask[3] = np.where(rng.random(n_kv) < 0.5, -np.inf, rng.normal(size=n_kv))
    mask[5] = np.where(np.arange(n_kv) < 200, -np.inf, mask[5])  # a window
    return q, k[None], v[None], mask[None]


@pytest.mark.parametrize("shape", [(40, 300, 6, 2, 64, 64), (17, 512, 7, 1, 96, 80), (70, 400, 2, 2, 256, 256)])
def test_prompts(shape: tuple[int, ...]) -> None:
    """Float32's accuracy; the same bits everywhere, and for a query among others."""
    q, k, v, mask = prompt_problem(*shape)
    scale = shape[4] ** -0.5
    group = shape[2] // shape[3]
    scores = np.einsum("qhd,nhd->hqn", q[0].astype(float), k[0].astype(float).repeat(group, 1)) * scale
    scores += mask[0].astype(float)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum("hqn,nhd->qhd", weights, v[0].astype(float).repeat(group, 1))
    first = _core.AttentionRun().batch(q, k, v, mask, scale=scale)
    assert np.abs(first[0] - wanted).max() < 2e-6
    for isa in ISAS:
        _core.isa_select(isa)
        for threads in (1, 2, 3):
            found = _core.AttentionRun().batch(q, k, v, mask, scale=scale, threads=threads)
            np.testing.assert_array_equal(found, first)
    some = np.ascontiguousarray(q[:, ::-1][:, :17]), k, v, np.ascontiguousarray(mask[:, ::-1][:, :17])
    np.testing.assert_array_equal(_core.AttentionRun().batch(*some, scale=scale), first[:, ::-1][:, :17])


def test_a_prompt_reads_nothing_that_is_hidden() -> None:
    q, k, v, mask = prompt_problem(20, 300, 4, 2, 64, 64)
    mask[0, 3:6] = mask[0, 2]
    hidden = np.arange(300) >= 260
    mask[0, :, hidden] = -np.inf
    wanted = _core.AttentionRun().batch(q, k, v, mask)
    k[0, hidden], v[0, hidden] = np.nan, np.inf
    np.testing.assert_array_equal(_core.AttentionRun().batch(q, k, v, mask), wanted)
    mask[:] = -np.inf
    assert not _core.AttentionRun().batch(q, k, v, mask).any()


def test_automatic_attention_is_exact_attention(tiny: Path, load: Callable[..., Any]) -> None:
    """The default: single tokens and prompts are ours in every context."""
    llm = load(tiny, RuntimeConfig())
    np.testing.assert_array_equal(one_by_one(llm), one_by_one(load(tiny, EXACT)))
    assert llm.seeddelta.metrics()["attention.exact"] == 50 * N_LAYERS
    stock = load(tiny, RuntimeConfig(attention="llama"))
    tokens = tokens_of(llm, 200)
    assert divergence(logits_of(stock, tokens, batch=200), logits_of(llm, tokens, batch=200)) < 1e-5
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.prompts"] >= N_LAYERS
    assert metrics["attention.left"] == 0
    assert "attention.exact" not in stock.seeddelta.metrics()


def test_without_fused_multiply_add(tiny: Path, load: Callable[..., Any]) -> None:
    """There our kernels are the scalar ones: attention is llama.cpp's, and who asks for ours is told why not."""
    _core.isa_select("scalar")
    models = [load(tiny, RuntimeConfig(attention=name)) for name in ("auto", "llama")]
    ours, stock = (logits_of(llm, tokens_of(llm, 60), batch=59) for llm in models)
    np.testing.assert_array_equal(ours, stock)
    assert models[0].seeddelta.metrics().get("attention.exact", 0) == 0
    for tokens in ([33], tokens_of(models[0], 60)):
        llm = load(tiny, EXACT)
        with pytest.raises(UnsupportedLlamaError, match="no fused multiply-add"):
            llm.eval(tokens)


def test_automatic_attention_leaves_what_it_does_not_know(
    tiny: Path, short_f16: Path, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [load(short_f16, RuntimeConfig(attention=name), type_k=Q5_0, type_v=Q5_0) for name in ("auto", "llama")]
    tokens = tokens_of(models[0], 24)
    ours, stock = (logits_of(llm, tokens, batch=1) for llm in models)
    np.testing.assert_array_equal(ours, stock)
    assert models[0].seeddelta.metrics()["attention.left"] == 24 * SHORT_LAYERS
    symbols = library.ggml_symbols()
    del symbols["ggml_set_rows"]
    other = library.probe(symbols)
    monkeypatch.setattr(attention, "loaded_ggml", lambda: other)
    with pytest.warns(RuntimeWarning, match=r"llama\.cpp computes all attention"):
        load(tiny, RuntimeConfig())


@pytest.mark.parametrize("count", [2, 5, 16])
def test_several_tokens_at_once(tiny: Path, load: Callable[..., Any], count: int) -> None:
    """As drafts are checked: ours where up to 16 tokens are decoded together."""
    tokens = [(7 * i * i + 3 * i) % (N_VOCAB - 32) + 32 for i in range(88)]
    results = []
    for config in (RuntimeConfig(attention="llama"), EXACT):
        llm = load(tiny, config)
        llm.eval(tokens[:40])
        for begin in range(40, 88, count):
            llm.eval(tokens[begin : begin + count])
        results.append(np.array(llm.scores[:88]))
    assert divergence(*results) < 1e-5
    assert llm.seeddelta.metrics()["attention.exact"] == -(-48 // count) * N_LAYERS


@pytest.mark.parametrize("unified", [True, False], ids=["one cache", "a cache each"])
def test_several_sequences_at_once(tiny: Path, load: Callable[..., Any], unified: bool) -> None:
    """Tokens of four sequences in one decode: what llama.cpp has, and no sequence sees another."""
    results = []
    for config in (RuntimeConfig(attention="llama"), EXACT):
        llm = load(tiny, config, n_ctx=512)
        params = llama_cpp.llama_context_params.from_buffer_copy(llm.context_params)
        params.n_seq_max, params.kv_unified = 4, unified
        context = llama_cpp.llama_init_from_model(llm.model, params)
        batch = llama_cpp.llama_batch_init(512, 0, 4)
        logits = [decode_each(context, batch, position) for position in range(30)]
        results.append(np.concatenate(logits))
        if config is EXACT:
            handle = handle_of(context)
            assert handle is not None
            assert handle.metrics()["attention.exact"] == 30 * N_LAYERS
            assert handle.metrics()["attention.left"] == 0
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    assert divergence(*results) < 1e-5


def decode_each(context: Any, batch: Any, position: int) -> Array:
    """The next token of four sequences, which have different texts; their logits."""
    batch.n_tokens = 4
    for i in range(4):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = (11 * position + 97 * i) % 200 + 32, position, 1
        batch.seq_id[i][0], batch.logits[i] = i, True
    assert llama_cpp.llama_decode(context, batch) == 0
    return np.array(np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (4, N_VOCAB)))
