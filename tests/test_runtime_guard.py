"""NaN and infinity, the fallback, and a hook that does not get its work."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import divergence, load, logits_of, tokens_of, with_base_scale, with_nan_in
from seeddelta import _core
from seeddelta.errors import IdleWeightsWarning, NumericalError, UnsupportedLlamaError

pytest.importorskip("llama_cpp")

from seeddelta.runtime import library, model
from seeddelta.runtime.handle import RuntimeHandle

BROKEN = "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def overflowing(short_two_layers: Path, model_dir: Path) -> Path:
    """The products of one weight are infinite."""
    return with_base_scale(short_two_layers, model_dir / "overflow.gguf", BROKEN, 3e38)


@pytest.mark.parametrize("threads", [1, 2])
def test_error_names_the_tensor(overflowing: Path, threads: int) -> None:
    llm = load(overflowing, threads)
    tokens = tokens_of(llm, 12)
    with pytest.raises(NumericalError, match=rf"{BROKEN}.*result.*fallback"):
        logits_of(llm, tokens)
    assert llm.seeddelta.counters()[BROKEN]["nonfinite_events"] == 1
    with pytest.raises(NumericalError):  # each time anew
        logits_of(llm, tokens)


@pytest.mark.parametrize("kind", ["f16", "f32", "quantized"])
def test_fallback_takes_over(
    overflowing: Path,
    short_two_layers: Path,
    short_f16: Path,
    smollm2_quantized: Path,
    model_dir: Path,
    kind: str,
) -> None:
    if kind == "quantized":
        fallback = smollm2_quantized
    elif kind == "f32":
        fallback = seeddelta.dequantize(short_f16, model_dir / "f32.gguf", type="f32", progress=False)
    else:
        fallback = short_f16
    llm = load(overflowing, fallback=fallback)
    tokens = tokens_of(llm, 20)
    healthy = load(
        short_two_layers, config=seeddelta.RuntimeConfig(dense=(BROKEN,)), fallback=fallback
    )  # ggml's own product for the same weight
    expected = logits_of(healthy, tokens)
    assert divergence(expected, logits_of(llm, tokens)) < 1e-3
    counts = llm.seeddelta.counters()[BROKEN]
    assert (counts["nonfinite_events"], counts["dense_calls"], counts["calls"]) == (1, 1, 1)
    assert divergence(expected, logits_of(llm, tokens, batch=5)) < 1e-3  # dense from the first product on
    counts = llm.seeddelta.counters()[BROKEN]
    assert (counts["nonfinite_events"], counts["dense_calls"], counts["calls"]) == (1, 5, 5)
    others = [c["dense_calls"] for name, c in llm.seeddelta.counters().items() if name != BROKEN]
    assert not any(others)


@pytest.mark.parametrize("with_fallback", [False, True])
def test_nan_activations(short_two_layers: Path, short_f16: Path, tmp_path: Path, with_fallback: bool) -> None:
    """NaN that comes from elsewhere: no fallback can help, and no weight is blamed for good."""
    path = with_nan_in(short_two_layers, tmp_path / "nan.gguf", "blk.1.attn_norm.weight")
    llm = load(path, fallback=short_f16 if with_fallback else None)
    message = "also with the dense fallback" if with_fallback else "activations"
    with pytest.raises(NumericalError, match=rf"blk\.1\.attn_.*{message}"):
        logits_of(llm, tokens_of(llm, 8))


def test_context_that_is_made_in_another_way(short_two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "new_model", lambda make, sequences, flash: contextlib.nullcontext())
    with pytest.raises(UnsupportedLlamaError, match="llama_init_from_model"):
        load(short_two_layers)


class WithExtraWeights:
    """A registry with weights of other names than the file has."""

    def __init__(self, *names: str, n_in: int = 64, n_out: int = 64) -> None:
        arrays = {"row_scale": np.ones(n_out, np.float32)}
        self.extra = [_core.Weight(n, n_out, n_in, base_kind=0, base_scale=1.0, arrays=arrays) for n in names]

    def __call__(self, *arguments: Any) -> Any:
        registry = _core.WeightRegistry(*arguments)
        for weight in self.extra:
            registry.add(weight)
        return registry


def patched_registry(monkeypatch: pytest.MonkeyPatch, registry: WithExtraWeights) -> None:
    """A model's registry has the other one's weights, too."""
    original = _core.ServedModel.registry.fget  # type: ignore[attr-defined]

    def both(model: _core.ServedModel) -> _core.WeightRegistry:
        made: _core.WeightRegistry = original(model)
        for weight in registry.extra:
            made.add(weight)
        return made

    monkeypatch.setattr(_core.ServedModel, "registry", property(both))


def test_weight_that_no_graph_uses(short_two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched_registry(monkeypatch, WithExtraWeights("blk.99.ffn_up.weight"))
    llm = load(short_two_layers)
    with pytest.warns(IdleWeightsWarning, match=r"did not use 'blk\.99\.ffn_up\.weight'$"):
        logits_of(llm, tokens_of(llm, 4))
    assert llm.seeddelta.idle == ["blk.99.ffn_up.weight"]
    assert llm.seeddelta.metrics()["seeddelta.idle_weights"] == 1
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        logits_of(llm, tokens_of(llm, 4))


def test_no_weight_is_used() -> None:
    registry = WithExtraWeights("blk.0.ffn_up.weight", "blk.0.ffn_down.weight")(library.loaded_ggml())
    with pytest.raises(UnsupportedLlamaError, match=r"used none of the weights, 'blk\.0\.ffn_"):
        RuntimeHandle(hook=_core.GraphHook(registry)).check()


def test_weight_in_another_operation(short_two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched_registry(monkeypatch, WithExtraWeights("blk.5.ffn_norm.weight"))
    llm = load(short_two_layers)
    with pytest.raises(UnsupportedLlamaError, match=r"blk\.5\.ffn_norm\.weight.*used by MUL,"):
        logits_of(llm, tokens_of(llm, 4))


def test_weight_of_another_shape(short_two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched_registry(monkeypatch, WithExtraWeights("blk.5.ffn_up.weight"))
    llm = load(short_two_layers)
    with pytest.raises(UnsupportedLlamaError, match=r"blk\.5\.ffn_up\.weight.*layout"):
        logits_of(llm, tokens_of(llm, 4))
