"""Column layout in llama.cpp: what is computed is what the file stands for, and it is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT, assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackMLP
from seeddelta.settings.skip_file import read_skip_file
from tiny_llama import N_EMBD, N_FF, N_LAYERS, write_llama

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
    ran = after["seeddelta.calls.columns_lanes"] - start["seeddelta.calls.columns_lanes"]
    assert ran == 3 * N_LAYERS * decodes
    # in rows or columns, a product of one token asks for what the next one begins with
    counters = llm.seeddelta.counters()
    for name in ("ffn_down", "ffn_gate", "attn_q"):
        assert counters[f"blk.1.{name}.weight"]["prefetched"] >= decodes - 1, name
    assert after["seeddelta.calls.lanes"] - start["seeddelta.calls.lanes"] == 4 * N_LAYERS * decodes
    assert after["seeddelta.dense_calls"] == after["seeddelta.nonfinite_events"] == 0
    llm.close()


@pytest.fixture(scope="module")
def columns(model: Path, model_dir: Path) -> Path:
    """All matrices of the layers in columns."""
    path = model_dir / "columns-llama.seeddelta.gguf"
    recipe = seeddelta.Recipe(input=model, output=path, layout="column", targets="all", no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    return path


@pytest.fixture(scope="module")
def mixed(model: Path, model_dir: Path) -> Path:
    """Keys and up in rows, between and beside matrices in columns that read the same input."""
    path = model_dir / "mixed-llama.seeddelta.gguf"
    named = ["attn_q", "attn_v", "ffn_gate", "ffn_down"]
    recipe = seeddelta.Recipe(input=model, output=path, column_tensor=named, targets="all", no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    return path


def load_config(path: Path, threads: int = 2, **options: Any) -> Any:
    return load_small(path, threads, config=RuntimeConfig(**({"force": True} | options)))


def test_threads_change_nothing(columns: Path) -> None:
    assert_threads_change_nothing(columns)


@pytest.mark.parametrize("which", ["columns", "mixed"])
def test_everything_kept_is_the_model(which: str, request: pytest.FixtureRequest) -> None:
    """Bit for bit, for every way to choose inputs, in prompts and token by token; the counters say that it chose."""
    path = request.getfixturevalue(which)
    plain = load_config(path, 1)
    tokens = tokens_of(plain, 20)

    def logits(llm: Any) -> Any:
        return np.vstack([logits_of(llm, tokens), logits_of(llm, tokens[:4], batch=1)])

    expected = logits(plain)
    assert "kwta.calls" not in plain.seeddelta.metrics()
    units = plain.seeddelta.metrics()["seeddelta.active_inputs"]
    for threads, zeros, options, calls in (
        (1, 0, {"kwta": Kwta(k=1.0)}, "kwta.calls"),
        (3, 0, {"kwta": Kwta(k=1.0, block=16, score="magnitude")}, "kwta.calls"),
        (2, 5, {"state_pack_mlp": StatePackMLP(eps=0.0, rho=1.0, target="both")}, "pack.calls"),
    ):
        llm = load_config(path, threads, skip_prompt=True, **options)
        np.testing.assert_array_equal(logits(llm), expected)
        metrics = llm.seeddelta.metrics()
        assert metrics[calls] > 4 * N_LAYERS * 20
        assert metrics["seeddelta.skipped_inputs"] <= zeros
        assert metrics["seeddelta.active_inputs"] + metrics["seeddelta.skipped_inputs"] == units


def test_kwta_skips(columns: Path, mixed: Path) -> None:
    """Query, key and value share one choice, gate and up another, unless one of them lies in rows."""
    plain = load_config(columns)
    tokens = tokens_of(plain, 4)
    expected = logits_of(plain, tokens, batch=1)
    llm = load_config(columns, kwta=Kwta(k={"ffn_down": 0.25, "ffn_gate": 0.5, "attn": 0.75}))
    assert 1e-6 < divergence(expected, logits_of(llm, tokens, batch=1)) < 1
    assert llm.seeddelta.metrics()["kwta.gates"] == 4 * N_LAYERS
    assert llm.seeddelta.metrics()["kwta.calls"] == 4 * N_LAYERS * 4
    counters = llm.seeddelta.counters()
    for name, n_in, kept, reused in (
        ("ffn_down", N_FF, 24, 0), ("ffn_up", N_EMBD, 32, 4), ("attn_v", N_EMBD, 48, 4), ("attn_output", N_EMBD, 48, 0)
    ):  # fmt: skip
        counts = counters[f"blk.1.{name}.weight"]
        found = counts["active_inputs"], counts["skipped_inputs"], counts["reused"]
        assert found == (4 * kept, 4 * (n_in - kept), reused), name
    llm = load_config(mixed, kwta=Kwta(k=0.5))
    logits_of(llm, tokens, batch=1)
    found = {group for group in llm.seeddelta.gate_groups if group[0].startswith("blk.0.")}
    assert found == {(f"blk.0.{name}.weight",) for name in ("attn_q", "attn_v", "ffn_gate", "ffn_down")}
    counters = llm.seeddelta.counters()
    for name, skipped in (("attn_q", 128), ("attn_k", 0), ("attn_v", 128), ("ffn_gate", 128), ("ffn_up", 0)):
        assert counters[f"blk.0.{name}.weight"]["skipped_inputs"] == skipped, name


def test_scores_know_the_weights(columns: Path) -> None:
    """WINA by the stored scales ranks like the norms of the decoded columns."""
    from seeddelta.gguf.reader import open_seeddelta

    with open_seeddelta(columns) as file:
        for tensor in file.tensors.values():
            exact = np.linalg.norm(tensor.to_weight().dequantize(), axis=0)
            found = tensor.to_weight().input_norms()
            error = found / found.mean() - exact / exact.mean()
            assert np.abs(error).mean() < 0.1  # of 32 to 96 outputs; of 576 it is 0.003


@pytest.mark.parametrize("which", ["columns", "mixed"])
def test_events(which: str, request: pytest.FixtureRequest) -> None:
    """Every change sent is the model; a threshold leaves some out. Matrices of one input that do not share its state
    get every change, too."""
    path = request.getfixturevalue(which)
    plain = load_config(path, 1)
    tokens = tokens_of(plain, 12)
    expected = logits_of(plain, tokens, batch=1)
    some = load_config(path, event=EventDriven(delta_theta=0.5, target="both", gap_every=0))
    lossy = divergence(expected, logits_of(some, tokens, batch=1))
    exact = load_config(path, event=EventDriven(delta_theta=0.0, target="both", gap_every=4, gap_tol=1.0))
    assert divergence(expected, logits_of(exact, tokens, batch=1)) < 0.1 * lossy
    metrics = exact.seeddelta.metrics()
    assert metrics["event.enabled"] == metrics["event.active"] == 4 * N_LAYERS
    assert metrics["event.full"] == 4 * N_LAYERS
    assert metrics["event.topk_kept"] > 0.9
    assert metrics["event.gap_checks"] > 0
    assert metrics["event.quality_gap"] < 0.1
    metrics = some.seeddelta.metrics()
    assert 0.1 < metrics["event.topk_kept"] < 0.9
    assert metrics["seeddelta.skipped_inputs"] > 0


def test_state_pack_skips(columns: Path) -> None:
    llm = load_config(columns, state_pack_mlp=StatePackMLP(eps=0.0, relative=0.5, rho=1.0))
    logits_of(llm, tokens_of(llm, 4), batch=1)
    metrics = llm.seeddelta.metrics()
    assert metrics["pack.enabled"] == 2 * N_LAYERS
    assert 0 < metrics["pack.density"] < 1
    assert metrics["seeddelta.skipped_inputs"] > 0


def test_sparsify(columns: Path, tmp_path: Path) -> None:
    """Calibrated on the file itself, and what is found is kept."""
    text, path = tmp_path / "valid.txt", tmp_path / "skip.yaml"
    text.write_text(TEXT * 10)
    command = ["sparsify", str(columns), "--text", str(text), "-o", str(path), "--keep", "0.6", "--ctx", "64"]
    assert main([*command, "--probe-chunks", "1", "--no-per-layer", "-t", "1"]) == 0
    assert len(read_skip_file(path).inputs) == 4 * N_LAYERS
    llm = load_config(columns, kwta=Kwta(file=path))
    logits_of(llm, tokens_of(llm, 8), batch=1)
    weights = {name: np.prod(shape) for name, shape in llm.seeddelta.hook.column_shapes().items()}
    read = 0.0
    for name, counts in llm.seeddelta.counters().items():
        read += weights[name] * counts["active_inputs"] / (counts["active_inputs"] + counts["skipped_inputs"])
    assert read / sum(weights.values()) == pytest.approx(0.6, abs=0.02)


def test_files_that_do_not_fit(short_two_layers: Path, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has none; build it with --layout column"):
        load_config(short_two_layers, kwta=Kwta())
    skip = tmp_path / "skip.json"
    skip.write_text('{"format": 1, "score": "wina", "inputs": {"blk.0.ffn_up.weight": {"keep": 0.5}}}')
    with pytest.raises(ConfigError, match=r"ffn_up\.weight' is not by columns"):
        load_config(mixed, kwta=Kwta(file=skip))
