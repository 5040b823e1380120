"""Contexts that others make of our model, results that others read, and placeholders that llama.cpp meets."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.errors import ConfigError, ForkedProcessError, NumericalError
from seeddelta.runtime import contexts

llama_cpp = pytest.importorskip("llama_cpp")

from architectures import _write as write_table  # noqa: E402
from llama_cpp import _internals as internals  # noqa: E402
from llama_cpp import llama_cpp as native  # noqa: E402
from llama_helpers import load_small, logits_of, with_nan_in  # noqa: E402
from tiny_llama import N_EMBD, N_VOCAB, write_experts, write_llama  # noqa: E402

TOKENS = list(range(5, 17))


@pytest.fixture(scope="module", params=["llama", "experts", "columns"])
def tiny(request: pytest.FixtureRequest, smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contexts")
    if request.param == "experts":
        dense = write_experts(folder / "dense.gguf", smollm2_quantized, "qwen2moe")
    else:
        dense = write_llama(folder / "dense.gguf", smollm2_quantized)
    layout: dict[str, Any] = {"layout": "column"} if request.param == "columns" else {"targets": "full"}
    path = folder / "tiny.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4, seeddelta_gap=9, **layout), progress=False)
    return path


@pytest.fixture
def llm(tiny: Path) -> Iterator[Any]:
    model = load_small(tiny, 1, flash_attn=False)
    yield model
    model.close()


def params() -> Any:
    made = native.llama_context_default_params()
    if hasattr(made, "flash_attn_type"):  # as Llama has it; older ones have it off
        made.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_DISABLED
    made.n_ctx, made.n_batch, made.n_ubatch, made.n_threads, made.n_threads_batch = 64, 64, 64, 1, 1
    return made


def decode(context: Any, tokens: list[int], function: Any = None) -> int:
    array = (native.llama_token * len(tokens))(*tokens)
    batch = native.llama_batch_get_one(array, len(tokens))
    return int((function or native.llama_decode)(context, batch))


def last_logits(context: Any, get: Any = None) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((get or native.llama_get_logits)(context), shape=(N_VOCAB,)).copy()


def test_second_context_of_the_model(llm: Any) -> None:
    """Made by a class of llama-cpp-python, and by the function itself: with counters of its own."""
    expected = logits_of(llm, TOKENS)[-1]
    first = llm.seeddelta.counters()
    other = internals.LlamaContext(model=llm._model, params=params(), verbose=False)
    raw = native.llama_init_from_model(llm._model.model, params())
    for context in (other.ctx, raw, other.ctx):
        assert decode(context, TOKENS) == 0
        np.testing.assert_array_equal(last_logits(context), expected)
        native.llama_memory_clear(native.llama_get_memory(context), True)
    assert llm.seeddelta.counters() == first
    handle = contexts.handle_of(raw)
    assert handle is not None
    assert handle.metrics()["seeddelta.calls"] == llm.seeddelta.metrics()["seeddelta.calls"]
    native.llama_free(raw)
    assert contexts.handle_of(raw) is None
    other.close()


def test_state_restored_into_another_context(llm: Any) -> None:
    logits_of(llm, TOKENS)
    size = native.llama_state_get_size(llm._ctx.ctx)
    state = (ctypes.c_uint8 * size)()
    native.llama_state_get_data(llm._ctx.ctx, state, size)
    context = native.llama_init_from_model(llm._model.model, params())
    assert native.llama_state_set_data(context, state, size) > 0
    assert decode(context, [7]) == 0
    llm.eval([7])
    expected = last_logits(llm._ctx.ctx)
    np.testing.assert_allclose(last_logits(context), expected, atol=0.02 * np.abs(expected).max())
    native.llama_free(context)


def test_another_callback_is_refused(llm: Any) -> None:
    wanted = params()
    wanted.cb_eval = native.ggml_backend_sched_eval_callback(lambda tensor, ask, data: False)
    with pytest.raises(ConfigError, match="cb_eval"):
        native.llama_init_from_model(llm._model.model, wanted)


def bare(name: str) -> Any:
    """A function of the library itself, as another library would call it."""
    known = getattr(native, name)
    original = known.args[0] if hasattr(known, "args") else known
    function = getattr(native._lib, name)
    assert function is original or original is not known
    return original


def test_nothing_but_nan_comes_from_a_hole(llm: Any) -> None:
    """A context that was made behind our back computes with the placeholders."""
    logits_of(llm, TOKENS)
    context = bare("llama_init_from_model")(llm._model.model, params())
    for tokens in (TOKENS, [3]):
        assert decode(context, tokens) == 0
        assert np.isnan(last_logits(context)).all()
    bare("llama_free")(context)


def test_holes_take_no_memory(tiny: Path) -> None:
    """They are mapped in pieces of the same pages, all of them NaN, which go with the model."""

    def pieces() -> set[tuple[int, int]]:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "seeddelta:nan" in line]
        return {(int(begin, 16), int(end, 16)) for begin, end in (line.split()[0].split("-") for line in lines)}

    before = pieces()
    llm = load_small(tiny, 1)
    assert pieces() > before
    for begin, end in pieces() - before:
        assert ctypes.string_at(begin, end - begin) == b"\xff" * (end - begin)
    llm.close()
    assert pieces() == before


def test_embeddings(tiny: Path) -> None:
    llm = load_small(tiny, 1, embedding=True)
    found = np.array(llm.embed("The sea", normalize=False))
    assert found.shape[-1] == N_EMBD
    assert np.isfinite(found).all()
    assert llm.seeddelta.metrics()["seeddelta.calls"] > 0


@pytest.mark.parametrize("read", ["llama_get_logits", "llama_sampler_sample"])
def test_errors_surface_where_results_are_read(tiny: Path, tmp_path: Path, read: str) -> None:
    """A decode that Python does not see (that of an image, by another library)."""
    llm = load_small(with_nan_in(tiny, tmp_path / "nan.gguf", "blk.1.attn_norm.weight"), 1)
    context = llm._ctx.ctx
    with pytest.raises(NumericalError, match=r"blk\.1"):
        decode(context, TOKENS)
    assert decode(context, TOKENS, bare("llama_decode")) == 0
    arguments = {
        "llama_get_logits": (context,),
        "llama_sampler_sample": (native.llama_sampler_init_greedy(), context, -1),
    }
    with pytest.raises(NumericalError, match=r"blk\.1"):
        getattr(native, read)(*arguments[read])
    llm.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_is_told_to_load_for_itself(llm: Any) -> None:
    expected = logits_of(llm, TOKENS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            llm.reset()
            llm.eval(TOKENS)
        except ForkedProcessError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(logits_of(llm, TOKENS), expected)


def write_bert(path: Path, tokenizer_of: Path) -> Path:
    """An encoder of two layers, whose attention sees all tokens."""
    rng, n, width = np.random.default_rng(4), 64, 96

    def matrix(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float16)

    def norm(name: str) -> dict[str, np.ndarray[Any, Any]]:
        return {f"{name}.weight": np.ones(n, np.float32), f"{name}.bias": np.zeros(n, np.float32)}

    tensors: dict[str, np.ndarray[Any, Any]] = {"token_embd.weight": matrix(N_VOCAB, n)}
    tensors |= {"position_embd.weight": 0.1 * rng.normal(size=(128, n)).astype(np.float32)} | norm("token_embd_norm")
    tensors |= {"token_types.weight": 0.1 * rng.normal(size=(2, n)).astype(np.float32)}
    for layer in range(2):
        block = {f"attn_{name}.weight": matrix(n, n) for name in ("q", "k", "v", "output")}
        block |= {f"attn_{name}.bias": np.zeros(n, np.float32) for name in ("q", "k", "v", "output")}
        block |= {"ffn_up.weight": matrix(width, n), "ffn_up.bias": np.zeros(width, np.float32)}
        block |= {"ffn_down.weight": matrix(n, width), "ffn_down.bias": np.zeros(n, np.float32)}
        block |= norm("attn_output_norm") | norm("layer_output_norm")
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    keys = {
        "context_length": 128, "embedding_length": n, "block_count": 2, "feed_forward_length": width,
        "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5, "attention.causal": False, "pooling_type": 1,
    }  # fmt: skip
    return write_table(path, "bert", tokenizer_of, keys, tensors, token_types=2)


def test_an_encoder(smollm2_quantized: Path, tmp_path: Path) -> None:
    dense = write_bert(tmp_path / "bert.gguf", smollm2_quantized)
    recipe = seeddelta.Recipe(input=dense, output=tmp_path / "sd.gguf", base_kind="prng_block", seeddelta_gap=9)
    seeddelta.build(recipe, progress=False)
    stored = seeddelta.dequantize(tmp_path / "sd.gguf", tmp_path / "stored.gguf", type="f32", progress=False)
    found = []
    for path in (tmp_path / "sd.gguf", stored):
        llm = load_small(path, 1, embedding=True)
        assert decode(llm._ctx.ctx, TOKENS, native.llama_encode) == 0
        vector = native.llama_get_embeddings_seq(llm._ctx.ctx, 0)
        found.append(np.ctypeslib.as_array(vector, shape=(64,)).copy())
        np.testing.assert_allclose(found[-1], found[0], atol=0.03 * np.abs(found[0]).max())
        if llm.seeddelta.enabled:
            assert llm.seeddelta.metrics()["seeddelta.calls"] == 12
            assert llm.seeddelta.idle == []
        assert np.isfinite(llm.embed("The sea")).all()
        llm.close()
