"""Rows of the seeds on KWTA, events and proc-sparse weights, inside llama.cpp. The tests have the names of the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import load_small, logits_of
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackKV
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

TOKENS = list(range(20, 60))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory, smollm2_quantized: Path) -> Path:
    return write_llama(tmp_path_factory.mktemp("seeds") / "dense.gguf", smollm2_quantized, width=256)


@pytest.fixture(scope="module", params=[0.05, 0.0])
def proc(request: pytest.FixtureRequest, dense: Path) -> Path:
    """Proc-sparse matrices of the MLP, blocks of 32: 2 for gate and up, 8 for down; the rest as usual."""
    path = dense.with_name(f"proc-{request.param}.gguf")
    options: dict[str, Any] = {"proc_sparse": True, "proc_fanout": 0.8, "proc_base_scale": request.param}
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, **options), progress=False)
    return path


def generate(path: Path, *, threads: int = 1, **options: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    llm = load_small(path, threads, config=RuntimeConfig(force=True, **options))
    logits = logits_of(llm, TOKENS, batch=1)
    return logits, dict(llm.seeddelta.metrics())


def test_sinergia_con_kwta(proc: Path) -> None:
    """`los bloques a reconstruir deben ser bloques_proc ∩ máscara_kwta`."""
    plain, whole = generate(proc)
    logits, metrics = generate(proc, kwta=Kwta(k=0.5, target="mlp"))
    assert metrics["kwta.gates"] == 4  # gate and up together, and down
    assert metrics["kwta.keep_ratio"] == pytest.approx(0.5)
    assert metrics["seeddelta.skipped_inputs"] == 2 * len(TOKENS) * (2 * 32 + 128)
    assert 0.3 * whole["proc.blocks"] < metrics["proc.blocks"] < 0.7 * whole["proc.blocks"]
    assert np.abs(logits - plain).max() > 1e-3
    np.testing.assert_array_equal(generate(proc, threads=2, kwta=Kwta(k=0.5, target="mlp"))[0], logits)
    same, metrics = generate(proc, kwta=Kwta(k=1.0, target="mlp"))
    np.testing.assert_array_equal(same, plain)
    assert metrics["proc.blocks"] == whole["proc.blocks"]


def test_sinergia_con_event_driven(proc: Path) -> None:
    """`los bloques a reconstruir deben ser bloques_proc ∩ máscara_event`."""
    plain, whole = generate(proc)
    event = EventDriven(delta_theta=0.8, gap_every=0)
    logits, metrics = generate(proc, event=event)
    assert metrics["event.enabled"] == 4
    assert 0 < metrics["event.topk_kept"] < 1
    assert metrics["proc.blocks"] < whole["proc.blocks"]
    np.testing.assert_array_equal(generate(proc, threads=2, event=event)[0], logits)
    both = generate(proc, event=event, kwta=Kwta(k=0.5, target="mlp"))[1]
    assert both["proc.blocks"] < metrics["proc.blocks"]
    checked = generate(proc, event=EventDriven(delta_theta=0.8, gap_every=1, gap_tol=9.0))
    np.testing.assert_array_equal(checked[0], plain)  # every token is the full product
    assert checked[1]["event.quality_gap"] > 0
    rows = proc.with_name("rows.gguf")
    seeddelta.build(seeddelta.Recipe(input=proc.with_name("dense.gguf"), output=rows), progress=False)
    with pytest.raises(ConfigError, match="or proc-sparse ones"):
        generate(rows, event=event)


def test_exponer_knobs_por_capa(dense: Path) -> None:
    """`exponer knobs por capa`: thresholds and shares by pattern; what no pattern fits is computed whole."""
    event = EventDriven(delta_theta={"blk.0.*": 0.3, "blk.0.ffn_down*": 0.0}, topk={"ffn_down": 0.25}, gap_every=0)
    _, metrics = generate(dense, columns="f16", event=event)
    assert metrics["event.enabled"] == 2
    llm = load_small(dense, 1, config=RuntimeConfig(columns="f16", event=event, force=True))
    logits_of(llm, TOKENS, batch=1)
    assert ("blk.0.ffn_down.weight",) in llm.seeddelta.gate_groups
    down = llm.seeddelta.counters()["blk.0.ffn_down.weight"]
    inputs = down["active_inputs"] + down["skipped_inputs"]
    width = inputs / len(TOKENS)
    assert down["active_inputs"] <= width + 0.26 * (inputs - width)  # the first token is computed whole
    with pytest.raises(ConfigError, match="patterns are of matrices"):
        EventDriven(target="kv", delta_theta={"blk.0.*": 0.1})


def test_usar_bloques_grandes(dense: Path) -> None:
    """`Overhead de ranking > ahorro: usar bloques grandes`: whole blocks are sent."""
    event = EventDriven(delta_theta=0.7, block=32, gap_every=0)
    _, metrics = generate(dense, columns="f16", event=event)
    assert 0 < metrics["event.topk_kept"] < 1
    assert metrics["seeddelta.skipped_inputs"] % 32 == 0
    assert metrics["seeddelta.skipped_inputs"] > 0


def test_fallback_frecuente_al_inicio(dense: Path) -> None:
    """`fallback frecuente al inicio`: products are compared 1, 3, 7, … tokens after the first."""
    llm = load_small(dense, 1, config=RuntimeConfig(columns="f16", event=EventDriven(gap_tol=9.0)))
    checks = []
    for _ in range(8):
        llm.eval(TOKENS[:1] if not checks else [TOKENS[len(checks)]])
        checks.append(llm.seeddelta.metrics()["event.gap_checks"] / 6)  # products
    assert checks == [0, 1, 1, 2, 2, 2, 2, 3]


def test_fallback_si_cpu_sin_ganancia_o_gap_alto(dense: Path) -> None:
    """`si CPU sin ganancia o gap alto, desactivar dinámicamente`: of the MLP as of attention."""
    llm = load_small(dense, 1, config=RuntimeConfig(columns="f16", event=EventDriven(delta_theta=5.0, gap_tol=1e-6)))
    logits_of(llm, TOKENS[:12], batch=1)
    assert llm.seeddelta.metrics()["event.off"] == 2
    assert "error is beyond the tolerance" in llm.seeddelta.switched_off["event"]


def test_filtrar_queries_keys_de_baja_energia(dense: Path, tmp_path: Path) -> None:
    """`mantener top-K por secuencia y reutilizar misma máscara para K/V`: by the selection of StatePack."""
    out = tmp_path / "metrics.json"
    arguments = ["run", "-m", str(dense), "-p", "a b c d e f", "-n", "4", "-c", "64", "--json", str(out), "-q"]
    kept = [
        "--state-pack-kv-layers=",
        "--state-pack-kv-min-context=2",
        "--state-pack-kv-sinks=0",
        "--state-pack-kv-recent=1",
    ]
    assert main([*arguments, "--kwta-target=kv", "--kwta-k=0.25", *kept]) == 0
    metrics = json.loads(out.read_text())
    assert metrics["attention.packed"] > 0
    assert 0 < metrics["pack.kept"] < metrics["pack.visible"]
    assert RuntimeConfig(kwta=Kwta(target="kv", k=0.4)).chosen_keys.budget == 0.4  # type: ignore[union-attr]
    assert RuntimeConfig(kwta=Kwta(target="kv", k_abs=128)).chosen_keys.budget == 128  # type: ignore[union-attr]
    assert not RuntimeConfig(kwta=Kwta(target="kv")).skips
    with pytest.raises(ConfigError, match="one k or k_abs"):
        Kwta(target="kv", k={"ffn_down": 0.5})
    with pytest.raises(ConfigError, match="exact takes all"):
        RuntimeConfig(kwta=Kwta(target="kv"), state_pack_kv=StatePackKV("exact"))


@pytest.mark.parametrize(("kind", "tolerance", "then"), [
    ("columns", 1e-4, lambda k, duty: k == pytest.approx(0.95) and duty > 1),
    ("columns", 50.0, lambda k, duty: k < 0.45 and duty == 1), ("proc", 50.0, lambda k, duty: k < 0.45 and duty == 1),
])  # fmt: skip
def test_si_delta_ppl_alto_subir_k_o_duty(
    kind: str, tolerance: float, then: Callable[[float, float], bool], dense: Path, tmp_path: Path
) -> None:
    """`Autotune simple: si Δppl alto, subir K o duty; si densidad baja, bajar K`, by the relative error of products."""
    path, options = dense, {"columns": "f16"}
    if kind == "proc":
        path, options = tmp_path / "proc.gguf", {}
        seeddelta.build(seeddelta.Recipe(input=dense, output=path, proc_sparse=True), progress=False)
    kwta = Kwta(k=0.8 if tolerance < 1 else 0.6, target="mlp", gap_tol=tolerance, gap_every=2)
    logits, metrics = generate(path, kwta=kwta, **options)
    assert metrics["kwta.gap_checks"] > 0
    assert metrics["kwta.tuned"] > 0
    assert metrics["kwta.quality_gap"] > 0
    assert then(metrics["kwta.k"], metrics["kwta.duty"])
    np.testing.assert_array_equal(generate(path, threads=2, kwta=kwta, **options)[0], logits)
    with pytest.raises(ConfigError, match="a gap tunes the fraction"):
        Kwta(k_abs=3, gap_tol=0.1)
