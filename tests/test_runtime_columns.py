"""Matrices by columns inside llama.cpp: what is computed, what is skipped, and that it really ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType
from llama_helpers import divergence, load, load_small, logits_of, tokens_of
from seeddelta import _core
from seeddelta.errors import ConfigError, SourceModelError
from seeddelta.gguf import names, targets
from seeddelta.gguf.model_file import read_header
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackMLP
from tiny_llama import SHORT_LAYERS
from tiny_models import tiny_weights, write_model

pytest.importorskip("llama_cpp")

from seeddelta.runtime.library import loaded_ggml
from seeddelta.runtime.options import core_options

PLACES = 2 * SHORT_LAYERS  # inputs of gate and up, and of down
WEIGHTS = SHORT_LAYERS * 7
INPUTS = SHORT_LAYERS * 4  # of q, k and v; of the attention's output; of gate and up; of down


def load_columns(path: Path, threads: int = 2, **options: object):
    return load_small(path, threads, config=RuntimeConfig(**({"force": True} | options), columns="f16"))


@pytest.fixture(scope="module")
def dense(short_f16: Path):
    """Tokens and what llama.cpp makes of them."""
    llm = load_small(short_f16)
    tokens = tokens_of(llm, 40)
    return tokens, logits_of(llm, tokens)


def test_columns_compute_the_model(short_f16: Path, dense) -> None:
    """Close to llama.cpp's own F16; the same bits with a gate that keeps everything, whatever the threads."""
    tokens, expected = dense
    llm = load_columns(short_f16, 1)
    logits = logits_of(llm, tokens)
    assert divergence(expected, logits) < 1e-4
    assert divergence(expected[:6], logits_of(llm, tokens[:6], batch=1)) < 1e-4
    assert llm.seeddelta.enabled
    assert len(llm.seeddelta.columns) == WEIGHTS
    metrics = llm.seeddelta.metrics()
    assert metrics["seeddelta.calls.columns_f16"] == metrics["seeddelta.calls"] == WEIGHTS * 7
    assert metrics["seeddelta.skipped_inputs"] == 0
    assert "kwta.calls" not in metrics
    for threads in (2, 3):
        keep_all = load_columns(short_f16, threads, kwta=Kwta(k=1.0), skip_prompt=True)
        np.testing.assert_array_equal(logits_of(keep_all, tokens), logits)
        metrics = keep_all.seeddelta.metrics()
        assert metrics["kwta.calls"] > INPUTS * (len(tokens) - 1)
        assert metrics["kwta.keep_ratio"] == 1
        assert metrics["seeddelta.skipped_inputs"] == 0


def test_kwta_skips(short_f16: Path, dense) -> None:
    """Decoding only by default; q, k and v share a choice, gate and up another; counters say what was left out."""
    tokens, expected = dense
    llm = load_columns(short_f16, kwta=Kwta(k={"ffn_down": 0.5, "ffn_gate": 0.7, "attn": 0.7}))
    prompt = logits_of(llm, tokens)
    assert llm.seeddelta.metrics()["seeddelta.skipped_inputs"] == 0
    assert divergence(expected, prompt) < 1e-4
    single = logits_of(llm, tokens[:4], batch=1)
    assert 1e-4 < divergence(expected[:4], single) < 1
    counters, metrics = llm.seeddelta.counters(), llm.seeddelta.metrics()
    assert metrics["kwta.gates"] == INPUTS
    assert metrics["kwta.calls"] == INPUTS * 4
    assert metrics["kwta.keep_ratio"] == pytest.approx((3 * 576 * 0.7 + 1536 * 0.5) / (3 * 576 + 1536), rel=1e-2)
    assert metrics["kwta.passes"] >= 1
    for name, kept in (("ffn_down", 768), ("ffn_up", 403), ("attn_v", 403), ("attn_output", 403)):
        counts = counters[f"blk.4.{name}.weight"]
        n_in = 1536 if name == "ffn_down" else 576
        assert counts["skipped_inputs"] == 4 * (n_in - kept), name
        assert counts["active_inputs"] == len(tokens) * n_in + 4 * kept
        assert counts["reused"] == (5 if name in ("ffn_up", "attn_v") else 0)


def test_a_prompt_is_masked_alike(short_f16: Path) -> None:
    """One layer's products of a prompt give the bits that they give token by token. (llama.cpp's attention does not, so
    only the first layer's inputs can be compared: all of one token.)"""
    options = {"kwta": Kwta(k=0.5), "skip_prompt": True}
    whole, alone = (load_columns(short_f16, threads, **options) for threads in (3, 1))
    tokens = tokens_of(whole, 2)
    assert divergence(logits_of(whole, tokens), logits_of(alone, tokens, batch=1)) < 5e-3
    for name in ("kwta.calls", "seeddelta.active_inputs"):
        # of the last layer llama.cpp computes what it needs
        assert whole.seeddelta.metrics()[name] == alone.seeddelta.metrics()[name]


def test_duty_and_target(short_f16: Path) -> None:
    llm = load_columns(short_f16, 1, kwta=Kwta(k=0.5, duty=2, target="mlp"))
    logits_of(llm, tokens_of(llm, 5), batch=1)
    metrics, counters = llm.seeddelta.metrics(), llm.seeddelta.counters()
    assert metrics["kwta.gates"] == PLACES
    assert metrics["kwta.calls"] == PLACES * 3
    assert metrics["kwta.duty_hits"] == PLACES * 2
    assert counters["blk.0.attn_q.weight"]["skipped_inputs"] == 0
    assert counters["blk.0.ffn_down.weight"]["skipped_inputs"] == 3 * 768


def test_aggressive_state_pack(short_f16: Path, dense) -> None:
    """Products of signs in the MLP, of single tokens only; off unless it is asked for."""
    tokens, expected = dense
    pack = {"mode": "ternary", "eps": 0.01, "rho": 1.0}
    signs, exact = (
        load_columns(short_f16, 1, state_pack_mlp=StatePackMLP(**pack, aggressive=aggressive))
        for aggressive in (True, False)
    )
    assert divergence(expected, logits_of(signs, tokens)) < 1e-4  # a prompt
    assert signs.seeddelta.metrics()["pack.aggressive"] == 0
    far, near = (divergence(expected[:5], logits_of(llm, tokens[:5], batch=1)) for llm in (signs, exact))
    assert near < 0.5 < far < np.inf
    assert signs.seeddelta.metrics()["pack.aggressive"] == 5 * 3 * SHORT_LAYERS  # gate, up and down
    assert exact.seeddelta.metrics()["pack.aggressive"] == 0
    assert signs.seeddelta.single_tokens
    assert not exact.seeddelta.single_tokens
    with pytest.raises(ConfigError, match="give columns f16"):
        RuntimeConfig(state_pack_mlp=StatePackMLP(**pack, aggressive=True))
    with pytest.raises(ConfigError, match="ternary"):
        StatePackMLP("binary", aggressive=True)


@pytest.mark.parametrize(("mode", "number"), [("binary", 1), ("ternary", 2)])
def test_state_pack(short_f16: Path, mode: str, number: int) -> None:
    """Where the inputs are dense it turns itself off; where its threshold leaves few, on."""
    pack = StatePackMLP(mode=mode, eps={"*": 1e-4, "blk.3.ffn_down.weight": 0.05}, rho=0.6)
    llm = load_columns(short_f16, 1, state_pack_mlp=pack)
    logits_of(llm, tokens_of(llm, 5), batch=1)
    metrics, counters = llm.seeddelta.metrics(), llm.seeddelta.counters()
    assert metrics["pack.mode"] == number
    assert metrics["pack.enabled"] == PLACES
    assert metrics["pack.calls"] == PLACES * 5
    assert metrics["pack.switches"] >= PLACES - 2
    assert 0 < metrics["pack.active"] < 0.2
    assert metrics["pack.density"] > 0.6
    assert metrics["pack.popcnt"] > 0
    assert metrics["pack.gamma"] > 0
    assert (metrics["pack.negative"] > 0) == (mode == "ternary")
    assert counters["blk.3.ffn_down.weight"]["skipped_inputs"] > 0
    assert counters["blk.5.ffn_down.weight"]["skipped_inputs"] == 0


def test_events(short_f16: Path) -> None:
    """Every change sent is the model; a threshold leaves some out; a gap that is never small enough turns it off."""
    options = {"delta_theta": 0.0, "target": "both"}
    exact = load_columns(short_f16, 2, event=EventDriven(**options))
    tokens = tokens_of(exact, 14)
    expected = logits_of(load_columns(short_f16, 1), tokens, batch=1)
    assert divergence(expected, logits_of(exact, tokens, batch=1)) < 1e-3
    metrics = exact.seeddelta.metrics()
    assert metrics["event.enabled"] == INPUTS
    assert metrics["event.calls"] == 14 * INPUTS
    assert metrics["event.full"] == INPUTS
    assert metrics["event.topk_kept"] > 0.99
    some = load_columns(short_f16, 2, event=EventDriven(delta_theta=0.3, gap_every=4, gap_tol=10))
    assert 1e-5 < divergence(expected, logits_of(some, tokens, batch=1)) < 0.5
    metrics = some.seeddelta.metrics()
    assert metrics["event.enabled"] == metrics["event.active"] == PLACES
    assert 0.2 < metrics["event.topk_kept"] < 0.9
    assert metrics["event.stale_pct"] == pytest.approx(100 * (1 - metrics["event.topk_kept"]))
    assert metrics["event.gap_checks"] == 3 * SHORT_LAYERS * 3  # a product each of gate, up and down
    assert 0 < metrics["event.quality_gap"] < 1
    assert metrics["event.budget_ms_used"] > 0
    assert metrics["event.gap_failures"] == 0
    assert metrics["seeddelta.skipped_inputs"] > 0
    wary = load_columns(short_f16, 1, event=EventDriven(delta_theta=0.5, gap_every=2, gap_tol=0, rearm=100))
    logits_of(wary, tokens, batch=1)
    metrics = wary.seeddelta.metrics()
    assert metrics["event.active"] == 0
    assert metrics["event.gap_failures"] == 3 * SHORT_LAYERS
    assert metrics["event.full"] == PLACES * (1 + 11)
    # a prompt in between begins anew, and a prompt of events is computed token by token
    whole = load_columns(short_f16, 2, event=EventDriven(delta_theta=0.3, gap_every=0), skip_prompt=True)
    logits_of(whole, tokens)
    assert 0.2 < whole.seeddelta.metrics()["event.topk_kept"] < 0.9


def test_event_budget_and_kwta(short_f16: Path) -> None:
    event = EventDriven(delta_theta=0.0, budget_ms=0.5, gap_every=0)
    llm = load_columns(short_f16, 1, event=event)
    logits_of(llm, tokens_of(llm, 8), batch=1)
    metrics = llm.seeddelta.metrics()
    assert metrics["event.budget_hits"] > 0
    assert metrics["event.topk_kept"] < 0.9
    llm = load_columns(short_f16, 1, kwta=Kwta(k=0.25), event=EventDriven(delta_theta=0.0, quorum=0.9, gap_every=0))
    logits_of(llm, tokens_of(llm, 8), batch=1)
    metrics = llm.seeddelta.metrics()
    assert 0 < metrics["event.topk_kept"] <= 0.25
    assert metrics["event.quorum_hits"] > 0


def test_quantized_sources(short_quantized: Path, dense) -> None:
    tokens, expected = dense
    llm = load_columns(short_quantized, column_targets=("ffn",))
    assert len(llm.seeddelta.columns) == 3 * SHORT_LAYERS
    assert divergence(expected, logits_of(llm, tokens)) < 0.1


CHILD = """
import json, sys
import seeddelta
from seeddelta.runtime import RuntimeConfig
config = RuntimeConfig(columns=sys.argv[2]) if len(sys.argv) > 2 else None
llm = seeddelta.load(sys.argv[1], config=config, n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
llm.create_completion("The history of the Roman Empire", max_tokens=4, temperature=0)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps(sum(int(status[k].split()[0]) for k in ("RssAnon", "RssFile", "RssShmem")) * 1024))
"""


def test_memory_is_not_doubled(short_f16: Path) -> None:
    """Columns take what the dense matrices take."""
    resident = {}
    for kind in ("", "f16"):
        command = [sys.executable, "-c", CHILD, str(short_f16), *([kind] if kind else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        resident[kind] = json.loads(done.stdout)
    matrices = 2 * 106e6
    assert resident["f16"] < resident[""] + 0.15 * matrices


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Kwta(k=0.0), "k 0.0: it must be greater than 0"),
    (lambda: Kwta(k={"ffn_down": 1.2}), "k 1.2: it must be at most 1"),
    (lambda: Kwta(k=0.5, k_abs=4), "both say how many"),
    (lambda: Kwta(block=8), "1, 16, 32 or 64"),
    (lambda: Kwta(duty=0), "duty"),
    (lambda: Kwta(target="all"), "mlp, attn, both or kv"),
    (lambda: Kwta(select="threshold"), "need a kwta file"),
    (lambda: Kwta(k=0.5, file="skip.yaml"), "has the fractions"),
    (lambda: StatePackMLP(mode="quaternary"), "binary or ternary"),
    (lambda: StatePackMLP(eps=-1), "eps"),
    (lambda: StatePackMLP(rho={"*": 2}), "rho"),
    (lambda: EventDriven(topk=0), "topk"),
    (lambda: EventDriven(budget_ms=0), "budget_ms"),
    (lambda: RuntimeConfig(event=EventDriven(), state_pack_mlp=StatePackMLP()), "leave one of them out"),
    (lambda: RuntimeConfig(event=EventDriven(), kwta=Kwta(k=0.5, block=16)), "not its block"),
    (lambda: RuntimeConfig(columns="f32"), "f16"),
    (lambda: RuntimeConfig.from_dict({"kwta": {"kk": 1}}), "kwta: setting .kk. is not known"),
    (lambda: RuntimeConfig.from_dict({"colums": "f16"}), "not known; did you mean columns"),
])  # fmt: skip
def test_options_are_checked(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_models_that_do_not_fit(short_f16: Path, short_two_layers: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --columns"):
        load(short_f16, config=RuntimeConfig(kwta=Kwta()))
    with pytest.raises(ConfigError, match="has its layout"):
        load(short_two_layers, config=RuntimeConfig(columns="f16"))
    with pytest.raises(SourceModelError, match="by columns for ffn_gate_exps"):
        load(short_f16, config=RuntimeConfig(columns="f16", column_targets=("ffn_gate_exps",)))
    with pytest.raises(ValueError, match="use_mmap"):
        load(short_f16, config=RuntimeConfig(columns="f16"), use_mmap=False)
    skip = tmp_path / "skip.json"
    skip.write_text("{}")
    with pytest.raises(ConfigError, match="no file of seeddelta sparsify"):
        load(short_f16, config=RuntimeConfig(columns="f16", kwta=Kwta(file=skip)))
    skip.write_text(json.dumps({"format": 1, "score": "wina", "inputs": {"blk.99.ffn_down.weight": {"keep": 0.5}}}))
    with pytest.raises(ConfigError, match=r"ffn_down\.weight' is not by columns"):
        load(short_f16, config=RuntimeConfig(columns="f16", kwta=Kwta(file=skip)))


def served(path: Path, **options: object) -> _core.ServedModel:
    return _core.ServedModel(path, loaded_ggml(), core_options(RuntimeConfig(**({"columns": "f16"} | options))))


@pytest.mark.parametrize(("architecture", "layers", "keys"), [
    ("llama", 2, {}), ("llama", 2, {"nextn_predict_layers": 1}), ("llama", 3, {"attention.shared_kv_layers": 1}),
    ("gemma3n", 22, {}),
])  # fmt: skip
def test_targets_are_those_of_a_build(architecture: str, layers: int, keys: dict[str, int], tmp_path: Path) -> None:
    """All that a build converts but for experts and what is in no layer; nothing that llama.cpp's graph leaves out."""
    matrix = np.ones((4, 32), np.float16)
    parts = ("ffn_up", "ffn_down_shexp", "attn_k", "attn_kv_b", "ssm_in", "laurel_l", "ffn_gate_inp", "ssm_conv1d")
    tensors = {f"blk.{layer}.{part}.weight": matrix for layer in range(layers) for part in parts}
    tensors |= {"blk.0.ffn_up_exps.weight": np.ones((2, 4, 32), np.float16), "output.weight": matrix}
    tensors |= {"blk.0.ffn_gate.weight": matrix[:1], "blk.0.ffn_down.bias": np.ones(4, np.float32)}
    more = {f"{architecture}.{key}": value for key, value in keys.items()}
    path = write_model(tmp_path / "m.gguf", tensors, architecture=architecture, keys=more, layers=layers)
    header = read_header(path)
    for target in (*names.GROUPS, "ffn_up", "attn_k"):
        found = [info.name for info in targets.chosen(header, (target,), None) if len(info.shape) == 2]
        expected = [name for name in found if names.split_name(name) is not None]
        if expected:
            model = served(path, column_targets=(target,))
            assert list(_core.GraphHook(model.registry).column_shapes()) == expected
        else:
            assert target in ("experts", "embd", "head")
            with pytest.raises(SourceModelError, match=f"{path}: no matrix .* by columns for {target}; look with"):
                served(path, column_targets=("ffn", target))


def test_matrices_that_cannot_be_columns(tmp_path: Path) -> None:
    name, path = "blk.1.ffn_up.weight", tmp_path / "m.gguf"
    for value, words in ((np.nan, "nan at row 3, column 5; the model"), (1e5, "weights beyond the range of float16")):
        weights = tiny_weights()
        weights[name][3, 5] = value
        write_model(path, weights, GGMLQuantizationType.F32)
        with pytest.raises(SourceModelError, match=f"{path}: tensor '{name}' has {words}"):
            load(path, config=RuntimeConfig(columns="f16"))
        served(path, column_targets=("ffn_gate", "attn"))
    data = bytearray(path.read_bytes())
    data[data.index(name.encode()) + len(name) + 4 + 2 * 8] = GGMLQuantizationType.I32
    path.write_bytes(data)
    with pytest.raises(SourceModelError, match=f"tensor '{name}' has the type I32, which this llama.cpp cannot"):
        load(path, config=RuntimeConfig(columns="f16"))


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_kwta_file(short_f16: Path, tmp_path: Path, suffix: str) -> None:
    """Fractions and thresholds a matrix; what it does not name is computed whole."""
    path = tmp_path / f"skip.{suffix}"
    inputs = {
        "blk.0.ffn_down.weight": {"keep": 0.25, "threshold": 1e30},
        "blk.2.attn_q.weight": {"keep": 0.5, "threshold": 0},
    }
    path.write_text(json.dumps({"format": 1, "score": "magnitude", "inputs": inputs}))  # JSON is YAML, too
    for select, down in (("topk", 3 * 1536 // 4), ("threshold", 1536)):
        llm = load_columns(short_f16, 1, kwta=Kwta(file=path, select=select))
        logits_of(llm, tokens_of(llm, 2), batch=1)
        counters = llm.seeddelta.counters()
        assert counters["blk.0.ffn_down.weight"]["skipped_inputs"] == 2 * down
        assert counters["blk.1.ffn_down.weight"]["skipped_inputs"] == 0
        assert counters["blk.2.attn_k.weight"]["skipped_inputs"] == (2 * 288 if select == "topk" else 0)


def test_evaluation_takes_options_a_model(short_f16: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The river rose above the fields, and the people carried their tools to the barn. " * 20)
    skipping = {"config": {"columns": "f16", "kwta": {"k": 0.5}, "skip_prompt": True}}
    found = seeddelta.evaluate(
        [short_f16, short_f16], text=text, n_ctx=64, chunks=1, threads=1, reps=0, options=[{}, skipping]
    )
    assert all(name.startswith("attention.") for name in found.models[0].metrics)
    assert found.models[1].metrics["kwta.keep_ratio"] == pytest.approx(0.5, rel=1e-2)
    assert found.models[1].divergence.mean > 0
