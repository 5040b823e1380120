"""Our attention inside llama.cpp: against llama.cpp's own, through everything that can happen to a KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

llama_cpp = pytest.importorskip("llama_cpp")

import seeddelta  # noqa: E402
from cache_machine import (  # noqa: E402
    EVERYWHERE,
    Machine,
    load_fixture,  # noqa: F401
    one_by_one,
    tiny_fixture,  # noqa: F401
    two_sequences_fixture,  # noqa: F401
    walk,
)
from llama_helpers import divergence, logits_of, perplexity_of, tokens_of  # noqa: E402
from seeddelta import RuntimeConfig, StatePackKV  # noqa: E402
from seeddelta.errors import ConfigError, UnsupportedLlamaError  # noqa: E402
from seeddelta.runtime import attention, library  # noqa: E402
from seeddelta.runtime.options import core_options  # noqa: E402
from tiny_llama import (  # noqa: E402
    N_HEAD,
    N_KV_HEAD,
    N_LAYERS,
    N_VOCAB,
    SHORT_LAYERS,
    write_gemma2,
    write_gpt_oss,
    write_mpt,
)

Array = np.ndarray[Any, Any]
FORMS = pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "products"])
EXACT = RuntimeConfig(attention="exact")
Q5_0 = int(GGMLQuantizationType.Q5_0)
ALL_AUDITED = 256  # positions of the small models' caches


@FORMS
def test_exact_attention_is_llamas(tiny: Path, load: Callable[..., Any], flash_attn: bool) -> None:
    stock = one_by_one(load(tiny, None, flash_attn=flash_attn))
    llm = load(tiny, EXACT, flash_attn=flash_attn)
    ours = one_by_one(llm)
    np.testing.assert_allclose(ours, stock, atol=0.02)
    assert divergence(stock, ours) < (1e-5 if flash_attn else 1e-6)
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.exact"] == 50 * N_LAYERS
    assert metrics["attention.packed"] == metrics["attention.left"] == 0
    assert not llm.seeddelta.enabled


@FORMS
def test_threads_do_not_matter(tiny: Path, load: Callable[..., Any], flash_attn: bool) -> None:
    for pack in (EXACT, StatePackKV("ternary", budget=0.2, density=0.9, **EVERYWHERE)):
        models = [load(tiny, pack, threads=threads, flash_attn=flash_attn) for threads in (1, 2, 3)]
        first, *others = [one_by_one(llm) for llm in models]
        for other in others:
            np.testing.assert_array_equal(other[40:], first[40:])


@FORMS
@pytest.mark.parametrize("mode", ["binary", "ternary"])
def test_everything_kept_is_exact(tiny: Path, load: Callable[..., Any], mode: Any, flash_attn: bool) -> None:
    exact = one_by_one(load(tiny, EXACT, flash_attn=flash_attn))
    llm = load(tiny, StatePackKV(mode, budget=1.0, **EVERYWHERE), flash_attn=flash_attn)
    np.testing.assert_array_equal(one_by_one(llm), exact)
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.packed"] == 50 * N_LAYERS
    assert metrics["attention.exact"] == 0
    assert metrics["pack.density"] == metrics["pack.recall"] == 1.0


@FORMS
def test_keys_are_chosen(tiny: Path, load: Callable[..., Any], flash_attn: bool) -> None:
    exact = one_by_one(load(tiny, EXACT, flash_attn=flash_attn))
    pack = StatePackKV("binary", popcount=True, budget=0.2, gap_every=4, gap=2.0, **EVERYWHERE)
    llm = load(tiny, pack, flash_attn=flash_attn)
    chosen = one_by_one(llm)
    assert not np.array_equal(chosen, exact)
    assert divergence(exact[40:], chosen[40:]) < 1.0
    metrics = llm.seeddelta.metrics()
    assert metrics["pack.mode"] == 1
    assert metrics["pack.active"] == N_LAYERS
    assert 0.2 < metrics["pack.density"] < 0.8
    assert 0 < metrics["pack.values"] == metrics["pack.kept"] < metrics["pack.visible"]
    padded = metrics["pack.scored"] / (50 * N_LAYERS * N_HEAD)  # positions: 256, fewer in older releases
    assert 40 < padded <= 256
    assert metrics["pack.popcnt"] == metrics["pack.scored"]
    assert metrics["pack.compared"] == 13 * N_LAYERS
    assert 0.3 < metrics["pack.recall"] < 1
    assert 0 < metrics["pack.gap"] < 2
    assert metrics["pack.bytes"] > 0


def test_layers_of_their_own(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, StatePackKV("binary", budget=0.2, gap=9.0, **(EVERYWHERE | {"layers": "1=none"})))
    one_by_one(llm)
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.packed"] == metrics["attention.exact"] == 50
    assert metrics["pack.active"] == 1


def test_heads_of_their_own(tiny: Path, load: Callable[..., Any]) -> None:
    """Of layer 1 one KV head attends to everything and one has another budget; each head tells what it did."""
    assert N_KV_HEAD == 2
    common: dict[str, Any] = {"budget": 0.2, "gap": 9.0, "gap_every": 5} | EVERYWHERE
    llm = load(tiny, StatePackKV("ternary", **(common | {"layers": "1=exact,1.0=ternary:0.4"})))
    one_by_one(llm)
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.packed"] == 50 * N_LAYERS
    assert metrics["pack.active"] == N_LAYERS
    assert (metrics["pack.heads"], metrics["pack.heads_own"], metrics["pack.heads_exact"]) == (2 * N_LAYERS, 2, 1)
    heads = llm.seeddelta.attention_heads()
    assert [(head["layer"], head["head"]) for head in heads] == [(layer, n) for layer in (0, 1) for n in (0, 1)]
    assert [head["exact"] for head in heads] == [0, 0, 0, 1]
    assert [round(head["budget"], 6) for head in heads] == [0.2, 0.2, 0.4, 0.2]
    assert {head["compared"] for head in heads} == {10}
    assert heads[3]["density"] == heads[3]["recall"] == 1
    assert heads[3]["gap"] == 0
    for head in heads[:3]:
        assert head["density"] < 1
        assert head["recall"] < 1
        assert head["gap"] > 0
    assert heads[2]["density"] > heads[0]["density"] + 0.1
    assert metrics["pack.density"] == pytest.approx(np.mean([head["density"] for head in heads]))


def test_all_heads_of_a_layer_are_the_layer(tiny: Path, load: Callable[..., Any]) -> None:
    for heads, layers in (("1.0-1=exact", "1=exact"), ("0=exact,0-1.0-1=ternary:0.3", "0-1=ternary:0.3")):
        packs = (StatePackKV("ternary", budget=0.2, **(EVERYWHERE | {"layers": text})) for text in (heads, layers))
        np.testing.assert_array_equal(*(one_by_one(load(tiny, pack)) for pack in packs))


def test_heads_that_are_not_there(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, StatePackKV("ternary", **(EVERYWHERE | {"layers": "1.1-2=exact"})))
    with pytest.raises(ConfigError, match="layer 1 has no KV head 2"):
        one_by_one(llm)


def test_short_contexts_are_exact(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, StatePackKV("binary", budget=0.1, **(EVERYWHERE | {"min_context": 256})))
    np.testing.assert_array_equal(one_by_one(llm), one_by_one(load(tiny, EXACT)))
    assert llm.seeddelta.metrics()["attention.packed"] == 0


def test_a_layer_with_too_large_an_error_becomes_exact(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, StatePackKV("binary", budget=0.05, gap=1e-6, gap_every=10, **EVERYWHERE))
    result = one_by_one(llm)
    metrics = llm.seeddelta.metrics()
    assert metrics["pack.disabled"] == N_LAYERS
    assert metrics["pack.active"] == 0
    assert metrics["attention.packed"] == N_LAYERS  # the first one is compared, and its result exact
    np.testing.assert_array_equal(result, one_by_one(load(tiny, EXACT)))


def test_with_seeddelta_weights(tiny: Path, load: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "tiny.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=tiny, output=path, bits=4), progress=False)
    stock = one_by_one(load(path, None))
    llm = load(path, EXACT)
    assert divergence(stock, one_by_one(llm)) < 0.005
    metrics = llm.seeddelta.metrics()
    assert llm.seeddelta.enabled
    assert metrics["seeddelta.calls"] > 0
    assert metrics["attention.exact"] == 50 * N_LAYERS


@FORMS
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_the_cache(
    tiny: Path,
    load: Callable[..., Any],
    two_sequences: Callable[[bool], None],
    unified: bool,
    seed: int,
    flash_attn: bool,
) -> None:
    """Random walks: with everything kept the logits are those of exact attention. A third model chooses, and compares
    the bits of *every* position with its key in every operation: none is ever wrong unless it is written behind our
    back, and then it is found and the result exact."""
    two_sequences(unified)
    everything = StatePackKV("ternary", budget=1.0, **EVERYWHERE)
    choosing = StatePackKV("ternary", budget=0.1, audits=ALL_AUDITED, gap=9.0, **EVERYWHERE)
    options = {"n_ctx": 256 if unified else 512, "logits_all": False, "flash_attn": flash_attn}
    models = [load(tiny, pack, **options) for pack in (EXACT, everything, choosing)]
    machines = [Machine(llm) for llm in models]
    secret = walk(machines, np.random.default_rng(seed), room=200, prompt=48)
    metrics = [llm.seeddelta.metrics() for llm in models]
    for machine in machines:
        machine.close()
    # prompts of up to 16 tokens are exact in all of them
    assert len({one["attention.exact"] + one["attention.packed"] for one in metrics}) == 1
    assert metrics[1]["attention.packed"] == metrics[2]["attention.packed"] > 60
    assert metrics[2]["pack.repacks"] > 0
    assert metrics[2]["pack.density"] < 1
    assert metrics[2]["pack.stale"] == 0 or secret


def test_a_state_that_is_loaded_secretly_is_noticed(tiny: Path, load: Callable[..., Any]) -> None:
    exact, choosing = (
        Machine(load(tiny, pack, logits_all=False))
        for pack in (EXACT, StatePackKV("binary", budget=0.1, gap=9.0, **EVERYWHERE))
    )
    first, second = np.random.default_rng(0).integers(32, N_VOCAB, (2, 70)).tolist()
    for machine in (exact, choosing):
        for position, token in enumerate(first[:60]):
            machine.decode([token], position, 0)
    state = exact.save()
    for machine in (exact, choosing):
        machine.clear()
        for position, token in enumerate(second):
            machine.decode([token], position, 0)
    assert choosing.llm.seeddelta.metrics()["pack.stale"] == 0
    for machine in (exact, choosing):
        machine.restore(state, secretly=True)
        machine.result = machine.decode([100], 60, 0)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(exact.result, choosing.result)  # type: ignore[attr-defined]
    assert choosing.llm.seeddelta.metrics()["pack.stale"] == N_LAYERS
    for machine in (exact, choosing):
        machine.close()


def test_perplexity_of_a_real_model(smollm2_f16: Path, load: Callable[..., Any]) -> None:
    """Token by token the perplexity is llama.cpp's to four digits, or nearer than a batch of tokens is to it."""
    stock, ours = load(smollm2_f16, None), load(smollm2_f16, EXACT)
    tokens = tokens_of(stock, 24)
    expected, found = (perplexity_of(logits_of(llm, tokens, batch=1), tokens, 1) for llm in (stock, ours))
    assert found == pytest.approx(expected, rel=5e-4)
    assert ours.seeddelta.metrics()["attention.exact"] == 24 * 30


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_caches_of_other_types(short_f16: Path, load: Callable[..., Any], kind: str) -> None:
    """ggml rounds the query to Q8_0 or BF16 too, we do not: nearer to F16. With everything kept: the same bits."""
    cache = dict.fromkeys(("type_k", "type_v"), int(GGMLQuantizationType[kind]))
    stock = load(short_f16, None, **cache)
    tokens = tokens_of(stock, 24)
    packs = (EXACT, StatePackKV("binary", budget=1.0, **EVERYWHERE))
    ours = [load(short_f16, pack, **cache) for pack in packs]
    expected, exact, kept = (logits_of(llm, tokens, batch=1) for llm in (stock, *ours))
    np.testing.assert_array_equal(kept, exact)
    f16 = logits_of(load(short_f16, None), tokens, batch=1)
    assert divergence(f16, exact) < min(0.5 if kind == "Q4_0" else 1e-3, 1.2 * divergence(f16, expected))
    assert ours[0].seeddelta.metrics()["attention.exact"] == 24 * SHORT_LAYERS
    assert ours[1].seeddelta.metrics()["attention.packed"] == 24 * SHORT_LAYERS


def test_without_flash_attention_on_a_real_model(short_f16: Path, load: Callable[..., Any]) -> None:
    """ggml's products have sums in float32: nearly the same logits, with graphs that are used again and for two
    lengths of the cache's view."""
    stock, ours = (load(short_f16, pack, n_ctx=512, n_batch=512, flash_attn=False) for pack in (None, EXACT))
    tokens = tokens_of(stock, 272)
    logits = []
    for llm in (stock, ours):
        llm.eval(tokens[:248])
        for token in tokens[248:]:
            llm.eval([token])
        logits.append(np.array(llm.scores[:272]))
    assert divergence(*logits) < 1e-5
    metrics = ours.seeddelta.metrics()
    assert metrics["attention.exact"] == metrics["attention.nodes"] == 24 * SHORT_LAYERS
    assert metrics["attention.left"] == 0


@FORMS
@pytest.mark.parametrize("write", [write_gemma2, write_mpt, write_gpt_oss])
def test_other_architectures(
    smollm2_quantized: Path, model_dir: Path, load: Callable[..., Any], write: Callable[..., Path], flash_attn: bool
) -> None:
    """Softcapped scores and a sliding window; ALiBi, whose mask has numbers; sinks: as llama.cpp computes them without
    flash attention, which is less exact with sinks (logits of this gpt-oss are off by 3)."""
    path = write(model_dir / f"{write.__name__}.gguf", smollm2_quantized)
    try:
        stock = load(path, None, flash_attn=False)
    except ValueError:
        pytest.skip("this llama.cpp does not load the model")
    llm = load(path, EXACT, flash_attn=flash_attn)
    assert divergence(one_by_one(stock), one_by_one(llm)) < 1e-5
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.exact"] == 50 * N_LAYERS
    assert metrics["attention.left"] == 0


def test_keys_of_q8_0_without_flash_attention(short_f16: Path, load: Callable[..., Any]) -> None:
    """ggml rounds the query to Q8_0 too, we do not: nearer to F16. With everything kept: the same bits."""
    options = {"type_k": llama_cpp.GGML_TYPE_Q8_0, "flash_attn": False}
    stock = load(short_f16, None, **options)
    tokens = tokens_of(stock, 24)
    packs = (EXACT, StatePackKV("binary", budget=1.0, **EVERYWHERE))
    expected, exact, kept = (
        logits_of(llm, tokens, batch=1) for llm in (stock, *(load(short_f16, pack, **options) for pack in packs))
    )
    np.testing.assert_array_equal(kept, exact)
    f16 = logits_of(load(short_f16, None, flash_attn=False), tokens, batch=1)
    assert divergence(f16, exact) < min(1e-3, divergence(f16, expected))


@FORMS
def test_attention_that_is_left(
    short_f16: Path, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, flash_attn: bool
) -> None:
    """A cache of another type: an error, not silence."""
    monkeypatch.setattr("seeddelta.runtime.attention.check_arguments", lambda kwargs: None)
    llm = load(short_f16, EXACT, flash_attn=flash_attn, type_k=Q5_0, type_v=Q5_0 if flash_attn else None)
    with pytest.raises(UnsupportedLlamaError, match="none of F16, BF16, Q8_0 and Q4_0"):
        logits_of(llm, tokens_of(llm, 24), batch=1)
    metrics = llm.seeddelta.metrics()
    assert metrics["attention.left"] == SHORT_LAYERS
    assert metrics["attention.nodes"] == 0


def test_steps_that_are_not_known(
    smollm2_quantized: Path, model_dir: Path, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something other than a tanh between product and softmax: left to llama.cpp, with an error."""
    gelu = ctypes.cast(library.native_library()["ggml_gelu"], ctypes.c_void_p).value or 0
    other = library.probe(library.ggml_symbols() | {"ggml_tanh": gelu})
    monkeypatch.setattr(attention, "loaded_ggml", lambda: other)
    path = write_gemma2(model_dir / "unknown-steps.gguf", smollm2_quantized)
    llm = load(path, EXACT, flash_attn=False)
    with pytest.raises(UnsupportedLlamaError, match="steps that are not known"):
        one_by_one(llm)
    assert llm.seeddelta.metrics()["attention.left"] == N_LAYERS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flash_attn": False, "type_v": llama_cpp.GGML_TYPE_Q8_0}, "type_v"),
        ({"type_k": Q5_0}, "type_k"),
        ({"n_gpu_layers": 4}, "n_gpu_layers"),
    ],
)
def test_contradicting_arguments(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        seeddelta.load(tiny, config=EXACT, verbose=False, **options)


def test_attention_that_cannot_be_served(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, StatePackKV("binary", layers="0-9=exact", min_context=0))
    with pytest.raises(UnsupportedLlamaError, match="no layer"):
        one_by_one(llm)


@pytest.mark.parametrize("name", ["ggml_flash_attn_ext", "ggml_set_rows", "ggml_permute", "ggml_tanh"])
def test_missing_symbol(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = library.ggml_symbols()
    del symbols[name]
    other = library.probe(symbols)
    monkeypatch.setattr(attention, "loaded_ggml", lambda: other)
    with pytest.raises(UnsupportedLlamaError, match=f"attention cannot be taken over: the function {name} is missing"):
        attention.own_attention(core_options(seeddelta.RuntimeConfig(state_pack_kv=StatePackKV())))


def test_perplexity_scores_what_we_compute(tiny: Path, load: Callable[..., Any]) -> None:
    """The scored half of each chunk goes through our attention; the first half is a prompt."""
    tokens = np.random.default_rng(0).integers(32, N_VOCAB, 200)
    stock, ours = load(tiny, None), load(tiny, EXACT)
    expected, found = (seeddelta.perplexity(llm, tokens, n_ctx=64, chunks=2) for llm in (stock, ours))
    assert found.ppl == pytest.approx(expected.ppl, rel=1e-3)
    assert ours.seeddelta.metrics()["attention.exact"] == 2 * 32 * N_LAYERS
