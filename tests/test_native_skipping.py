"""Skipping by the preloaded library: the bits and the counters of `seeddelta.load` with the same settings, and one
clear line for settings that cannot be."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from architectures import write_architecture
from seeddelta.errors import ConfigError
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackMLP
from seeddelta.settings.assign import Assignment, texts_of
from tiny_llama import N_LAYERS, write_llama

pytest.importorskip("llama_cpp")

from native_helpers import Told, load_and_eval, python_run, tell

SETTINGS: dict[str, RuntimeConfig] = {
    "none": RuntimeConfig(force=True),
    "kwta": RuntimeConfig(force=True, kwta=Kwta()),
    "kwta by pattern": RuntimeConfig(
        force=True, kwta=Kwta(k={"ffn_down": 0.25, "blk.1.*": 0.5}, block=16, score="magnitude", renormalize=True)
    ),
    "kwta that is tuned": RuntimeConfig(force=True, kwta=Kwta(k=0.5, gap_tol=0.2, gap_every=2, duty=2)),
    "kwta in prompts": RuntimeConfig(force=True, skip_prompt=True, kwta=Kwta(k_abs=24, target="mlp")),
    "pack": RuntimeConfig(force=True, state_pack_mlp=StatePackMLP(eps={"ffn_down": 0.01}, rho=1.0, relative=0.3)),
    "ternary pack": RuntimeConfig(
        force=True, state_pack_mlp=StatePackMLP(mode="ternary", rho=1.0, relative=0.5, target="both")
    ),
    "events": RuntimeConfig(force=True, event=EventDriven(delta_theta=0.5, target="both", gap_every=2, gap_tol=9.0)),
    "events with kwta": RuntimeConfig(
        force=True, event=EventDriven(delta_theta={"ffn_down": 0.2}, gap_every=0, quorum=0.9), kwta=Kwta(k=0.5)
    ),
}
WORK = {"kwta": "kwta.calls", "pack": "pack.calls", "event": "event.calls"}  # what says that it chose


@pytest.fixture(scope="module")
def columns(smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_llama(model_dir / "skipping.gguf", smollm2_quantized)
    path = model_dir / "skipping.seeddelta.gguf"
    seeddelta.build(
        seeddelta.Recipe(input=dense, output=path, layout="column", targets="all", no_checkpoint=True), progress=False
    )
    return path


@pytest.fixture(scope="module")
def relu(smollm2_quantized: Path, model_dir: Path) -> Path:
    """The inputs of ffn_down are often exactly 0."""
    dense = write_architecture(model_dir / "relu.gguf", smollm2_quantized, "arcee", zeros=True)
    path = model_dir / "relu.seeddelta.gguf"
    seeddelta.build(
        seeddelta.Recipe(input=dense, output=path, column_tensor=("ffn_down",), no_checkpoint=True), progress=False
    )
    return path


def words_of(config: RuntimeConfig) -> str:
    return shlex.join(f"{name}={text}" for name, text in texts_of(config).items())


def by_library(path: Path, config: RuntimeConfig, folder: Path, **more: str) -> tuple[Told, dict[str, Any]]:
    metrics = folder / "m.json"
    told = tell(load_and_eval(path), folder, set=words_of(config), metrics_json=str(metrics), **more)
    assert told.code == 0, told.stderr[-2000:]
    assert told.results[0], told.lines
    return told, json.loads(metrics.read_text())[str(path)]


def skipping(metrics: dict[str, Any]) -> dict[str, Any]:
    names = ("kwta.", "pack.", "event.", "zeros.", "seeddelta.active", "seeddelta.skipped", "seeddelta.calls", "proc.")
    left_out = ("event.budget_ms_used", "kwta.passes")  # a time, and what depends on the order of threads in prompts
    return {name: value for name, value in metrics.items() if name.startswith(names) and name not in left_out}


@pytest.mark.parametrize("name", SETTINGS)
def test_bits_and_counters_are_those_of_python(name: str, columns: Path, tmp_path: Path) -> None:
    config = SETTINGS[name]
    told, found = by_library(columns, config, tmp_path)
    assert told.lines == []
    logits, expected = python_run(columns, config=config)
    np.testing.assert_array_equal(told.logits(1), logits)
    assert skipping(found) == pytest.approx(skipping(expected))
    for key, calls in WORK.items():
        assert (calls in found) == (key in name), calls
        assert found.get(calls, 1) > 0
    assert (found["seeddelta.skipped_inputs"] > 0) == (name != "none")


@pytest.mark.parametrize(("config", "work"), [
    (RuntimeConfig(columns="f16"), "seeddelta.calls.columns_f16"),
    (RuntimeConfig(columns="f16", column_targets=("ffn_down", "attn"), force=True, kwta=Kwta(k=0.5)), "kwta.calls"),
    (RuntimeConfig(columns="f16", force=True, state_pack_mlp=StatePackMLP(
        mode="ternary", eps=0.01, rho=1.0, aggressive=True)), "pack.aggressive"),
])  # fmt: skip
def test_ordinary_models_by_columns(config: RuntimeConfig, work: str, tiny_dense: Path, tmp_path: Path) -> None:
    told, found = by_library(tiny_dense, config, tmp_path)
    assert told.lines == []
    logits, expected = python_run(tiny_dense, config=config)
    np.testing.assert_array_equal(told.logits(1), logits)
    assert skipping(found) == pytest.approx(skipping(expected))
    assert found[work] > 0
    assert (found["seeddelta.skipped_inputs"] > 0) == config.skips


@pytest.mark.parametrize("settings", ["kwta.k=0.6", "state_pack_mlp.eps=0.01", "event.delta_theta=0.3"])
def test_ordinary_models_have_columns_to_skip_inputs(
    settings: str, tiny_dense: Path, columns: Path, tmp_path: Path
) -> None:
    assert f"{tiny_dense}: kwta, state_pack_mlp and event skip inputs" in refused(tiny_dense, settings, tmp_path)
    draft = [{"load": "m", "path": columns}, {"load": "draft", "path": tiny_dense}]
    assert tell(draft, tmp_path, set=settings).results == [True, True]


def test_ordinary_models_that_cannot_be_by_columns(tiny_dense: Path, tmp_path: Path) -> None:
    line = refused(tiny_dense, "columns=f16 column_targets=ffn,mla", tmp_path)
    assert f"{tiny_dense}: no matrix of the layers can be stored by columns for mla" in line
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_dense.read_bytes()[:-1000])
    assert f"{path}: " in refused(path, "columns=f16", tmp_path)


def test_proc_sparse_blocks(smollm2_quantized: Path, tmp_path: Path) -> None:
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized, width=256)
    path = tmp_path / "sparse.gguf"
    recipe = seeddelta.Recipe(input=dense, output=path, proc_sparse=True, proc_fanout=0.8, no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    config = RuntimeConfig(force=True, kwta=Kwta(k=0.5, target="mlp"))
    told, found = by_library(path, config, tmp_path)
    logits, expected = python_run(path, config=config)
    np.testing.assert_array_equal(told.logits(1), logits)
    assert skipping(found) == pytest.approx(skipping(expected))
    assert found["kwta.gates"] == 2 * N_LAYERS


def test_exact_zeros(relu: Path, tmp_path: Path) -> None:
    """By default, with the bits of all inputs."""
    told, found = by_library(relu, RuntimeConfig(force=True), tmp_path)
    logits, expected = python_run(relu, config=RuntimeConfig(force=True))
    np.testing.assert_array_equal(told.logits(1), logits)
    assert skipping(found) == pytest.approx(skipping(expected))
    assert 0.7 < found["zeros.share"] < 0.97
    whole, without = by_library(relu, RuntimeConfig(zeros=False), tmp_path)
    assert "zeros.gates" not in without
    np.testing.assert_array_equal(whole.logits(1), logits)


def test_fractions_of_a_file(columns: Path, tmp_path: Path) -> None:
    inputs = {f"blk.{layer}.{name}.weight": {"keep": 0.5, "threshold": 0.02} for layer in range(N_LAYERS)
              for name in ("ffn_down", "ffn_gate")}  # fmt: skip
    skip = tmp_path / "skip.json"
    skip.write_text(json.dumps({"format": 1, "score": "wina", "model": "m", "tokens": 7, "inputs": inputs}, indent=1))
    for select in ("topk", "threshold"):
        config = RuntimeConfig(force=True, kwta=Kwta(file=skip, select=select))
        told, found = by_library(columns, config, tmp_path)
        logits, expected = python_run(columns, config=config)
        np.testing.assert_array_equal(told.logits(1), logits)
        assert found["kwta.gates"] == 2 * N_LAYERS
        assert skipping(found) == pytest.approx(skipping(expected))


@pytest.mark.parametrize(("text", "words"), [
    ("", "cannot be read; make it with `seeddelta sparsify -o skip.json`"),
    ("format: 1\n", "is no JSON of seeddelta sparsify"),
    ('{"format": 1, "score": "wina", "inputs": {}', "is no JSON"),
    ('{"format": 1, "score": "wina", "inputs": {"a": {"keep": 2}}}', "keep or a threshold of 'a'"),
    ('{"format": 1, "score": "wina", "inputs": {"blk.0.attn.weight": {"keep": 0.5}}}', "is not by columns in"),
])  # fmt: skip
def test_files_that_are_none(text: str, words: str, columns: Path, tmp_path: Path) -> None:
    skip = tmp_path / "skip.json"
    if text:
        skip.write_text(text)
    assert words in refused(columns, f"kwta.file={skip}", tmp_path)


@pytest.mark.slow
def test_gates_that_do_not_pay_are_switched_off(smollm2_quantized: Path, tmp_path: Path) -> None:
    """Many inputs for few outputs: choosing costs more than the products. One line says so."""
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized, width=8192)
    path = tmp_path / "wide.gguf"
    recipe = {"layout": "column", "targets": "ffn_down", "layers": "0", "effort": "fast", "no_checkpoint": True}
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, **recipe), progress=False)
    jobs: list[dict[str, Any]] = [{"load": "m", "path": path}]
    jobs += [{"eval": "m", "tokens": [[30], *[[token] for token in range(31, 130)]]}]
    told = tell(jobs, tmp_path, set="kwta.k=1", metrics_json=str(tmp_path / "m.json"))
    metrics = json.loads((tmp_path / "m.json").read_text())[str(path)]
    assert metrics["kwta.trial_tokens"] == 64
    assert metrics["kwta.off"] == 1
    assert metrics["kwta.saving"] < 0.02
    assert len(told.lines) == 1
    assert f"{path}: KWTA: switched off, since it " in told.lines[0]
    assert metrics["kwta.calls"] < 100 * metrics["kwta.gates"] - 32 * metrics["kwta.gates"]
    tell(jobs, tmp_path, set="kwta.k=1 force=on", metrics_json=str(tmp_path / "m.json"))
    metrics = json.loads((tmp_path / "m.json").read_text())[str(path)]
    assert "kwta.off" not in metrics
    assert metrics["kwta.calls"] == 100 * metrics["kwta.gates"]


def refused(path: Path, settings: str, folder: Path) -> str:
    told = tell([{"load": "m", "path": path}], folder, set=settings)
    assert told.code == 0, told.stderr[-2000:]
    assert told.results == [False], settings
    assert len(told.lines) == 1, told.stderr[-2000:]
    return told.lines[0]


# What both refuse, the library in one line, Python by an exception
WRONG = (
    "kwta.k=2", "kwta.k=0", "kwta.k=half", "kwta.k=ffn_down=0.5,ffn_up=x", "kwta.duty=0", "kwta.block=8",
    "kwta.score=size", "kwta.gap_tol=0", "columns=f32", "kwta.colour=red", "kwta=maybe", "colour=red", "zeros=perhaps",
    "attention=fast", "attention=off",
    "state_pack_mlp.mode=none", "state_pack_mlp.hysteresis=1", "state_pack_mlp.rho=1.5", "state_pack_mlp.target=kv",
    "event.delta_theta=-1", "event.topk=0", "event.quorum=0", "event.budget_ms=0", "event.age_max=-1",
    "event.delta_theta=nan", "event.rearm=1.5", "kwta.k",
    "kwta.k=0.5 kwta.k_abs=8", "kwta.select=threshold", "kwta.gap_tol=0.1 kwta.k_abs=8",
    "event=on state_pack_mlp=on", "event=on kwta.block=16", "event=on kwta.gap_tol=0.1",
    "state_pack_mlp.aggressive=on",
    "state_pack_kv.mode=off", "state_pack_kv.budget=0", "state_pack_kv.mass=2", "state_pack_kv.colour=red",
    "state_pack_kv.layers=1-0=exact", "state_pack_kv.layers=0.1-0=exact", "state_pack_kv.layers=x",
    "state_pack_kv.layers=0=ternary:0", "state_pack_kv.layers=0.0=binary,0.1=ternary", "state_pack_kv.sinks=-1",
    "state_pack_kv=on attention=llama", "kwta.target=kv event.target=kv", "kwta.target=kv state_pack_kv.mode=exact",
    "kwta.target=kv kwta.k=ffn_down=0.5", "kwta.target=kv kwta.gap_tol=0.1",
    "event.target=kv state_pack_kv.mode=binary", "event.target=kv event.block=16",
    "event.target=kv event.topk=ffn_down=0.5",
)  # fmt: skip


@pytest.mark.parametrize("settings", WRONG)
def test_settings_that_cannot_be(settings: str, columns: Path, tmp_path: Path) -> None:
    assert refused(columns, settings, tmp_path).startswith("seeddelta: error: SEEDDELTA_SET: ")
    given = Assignment(RuntimeConfig)
    with pytest.raises(ConfigError):  # noqa: PT012
        for word in settings.split():
            given.text(word)
        given.make()


@pytest.mark.parametrize(("settings", "words"), [
    ("columns=f16", "--columns stores an ordinary GGUF model by columns; a SeedΔ file has its layout"),
    ("lora=a.gguf", "lora=a.gguf: this setting is not known, or not served"), ("kwta.k='0.5", "a quote is not closed"),
    ("column_targets=", "column_targets names no matrices"),
])  # fmt: skip
def test_what_is_not_served_is_refused_by_name(settings: str, words: str, columns: Path, tmp_path: Path) -> None:
    assert words in refused(columns, settings, tmp_path)


def test_rows_have_nothing_to_skip(smollm2_quantized: Path, tmp_path: Path) -> None:
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    path = tmp_path / "rows.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, no_checkpoint=True), progress=False)
    told = tell([{"load": "m", "path": path}], tmp_path, set="kwta=on")
    assert told.results == [False]
    assert "and it has none; build it with --layout column" in told.lines[0]
