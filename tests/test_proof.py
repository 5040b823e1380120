"""Gates that prove themselves while a model generates, and exact zeros, which cost nothing where they are skipped."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
import seeddelta.sparsify
from architectures import write_architecture
from llama_helpers import load_small, logits_of
from seeddelta._core import Proof, ProvenGate
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackKV, StatePackMLP
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

TOKENS = list(range(20, 120))
NO_SAVING, GAP = 1, 2  # X.off of the metrics


class FakeGate:
    """Counts, and is slow or fast by a clock of its own."""

    def __init__(self, seconds: float, *, works: bool = True) -> None:
        self.seconds, self.works = seconds, works
        self.calls, self.out, self.wrong = 0, False, 0

    def proven(self, key: str, run: int = 1) -> ProvenGate:
        return ProvenGate(key, key, lambda: self.calls, self.pause, lambda: self.wrong, lambda: 3, run)

    def pause(self, out: bool) -> None:
        self.out = out


def run(
    proof: Proof, gates: list[FakeGate], tokens: int, seconds: Callable[[int], float] = lambda _: 1.0
) -> tuple[list[list[bool]], list[str]]:
    """Tokens of so many seconds and what the gates that are on add. Which were out for each, and the lines that came"""
    out, lines = [], []
    for token in range(tokens):
        proof.begin()
        out.append([gate.out for gate in gates])
        for gate in gates:
            gate.calls += gate.works and not gate.out
        lines += proof.end(seconds(token) + sum(gate.seconds for gate in gates if not gate.out))
    return out, lines


@pytest.mark.parametrize("length", [1, 8])
@pytest.mark.parametrize(("with_it", "off"), [(0.97, 0), (0.985, NO_SAVING), (1.2, NO_SAVING)])
def test_64_tokens_decide(length: int, with_it: float, off: int) -> None:
    gate = FakeGate(with_it - 1.0)
    proof = Proof(None, [gate.proven("kwta", length)])
    first, _ = run(proof, [gate], 63)
    assert first[: 2 * length] == [[False]] * length + [[True]] * length
    assert sum(out for (out,) in first) == 31
    assert proof.metrics()["kwta.saving"] == 0
    run(proof, [gate], 1)
    metrics = proof.metrics()
    assert metrics["kwta.saving"] == pytest.approx(1 - with_it)
    assert metrics["kwta.off"] == off
    assert metrics["kwta.trial_tokens"] == 64


def test_a_gate_that_does_nothing_is_not_measured() -> None:
    gate = FakeGate(0.1, works=False)
    proof = Proof(None, [gate.proven("kwta")])
    out, _ = run(proof, [gate], 1000)
    assert out == [[False]] * 1000
    assert proof.metrics() == {"kwta.off": 0, "kwta.off_places": 0, "kwta.saving": 0, "kwta.trial_tokens": 0}


def test_one_in_256_is_watched() -> None:
    """A gate that paid at first is found out later; outliers decide nothing."""
    gate = FakeGate(-0.2)
    proof = Proof(None, [gate.proven("kwta")])
    run(proof, [gate], 64)
    gate.seconds = 0.0
    out, _ = run(proof, [gate], 257 * 15, lambda token: 50.0 if token % 97 == 0 else 1.0)
    assert np.flatnonzero(out).tolist() == [256 + 257 * i for i in range(15)]
    assert proof.metrics()["kwta.saving"] == pytest.approx(0.0)
    assert proof.metrics()["kwta.off"] == NO_SAVING


def test_gates_are_tried_one_after_the_other() -> None:
    good, bad = FakeGate(-0.1), FakeGate(0.1)
    proof = Proof(None, [good.proven("kwta"), bad.proven("pack")])
    out, lines = run(proof, [good, bad], 200)
    assert not any(all(one) for one in out[:128])  # never both at once
    assert [one[0] for one in out[1:64:2]] == [True] * 32
    assert not any(one[1] for one in out[:64])
    assert sum(one[1] for one in out[64:128]) == 32
    assert all(one[1] for one in out[128:])
    metrics = proof.metrics()
    assert metrics["kwta.off"] == 0
    assert metrics["kwta.saving"] == pytest.approx(0.1 / 1.1)
    assert metrics["pack.off"] == NO_SAVING
    assert metrics["pack.trial_tokens"] == 64
    assert lines == [proof.reasons()["pack"]]
    assert proof.reasons().keys() == {"pack"}


def test_a_token_that_cannot_be_computed_is_not_measured() -> None:
    gate = FakeGate(0.1)
    proof = Proof(None, [gate.proven("kwta")])
    run(proof, [gate], 1)
    for _ in range(100):
        proof.begin()
        assert gate.out
        proof.cancel()
        assert not gate.out
    assert proof.metrics()["kwta.trial_tokens"] == 1


def test_errors_switch_off_at_once() -> None:
    gate = FakeGate(-0.1)
    proof = Proof(None, [gate.proven("event")])
    run(proof, [gate], 3)
    gate.wrong = 1
    _, first = run(proof, [gate], 3)
    assert proof.metrics()["event.off"] == 0
    assert proof.metrics()["event.off_places"] == 1
    gate.wrong = 3
    out, last = run(proof, [gate], 30)
    assert all(one == [True] for one in out[1:])
    assert proof.metrics()["event.off"] == GAP
    assert "3 of 3 places" in proof.reasons()["event"]
    assert len(first) == len(last) == 1


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm2_quantized: Path) -> Path:
    """Many inputs for few outputs: choosing among them costs more than the products."""
    return write_llama(tmp_path_factory.mktemp("proof") / "tiny.gguf", smollm2_quantized, width=8192)


SKIPPING: dict[str, tuple[str, dict[str, Any]]] = {
    "KWTA": ("kwta", {"columns": "f16", "kwta": Kwta(k=1.0)}),
    "StatePack of the MLP": ("pack", {"columns": "f16", "state_pack_mlp": StatePackMLP(rho=1.0)}),
    "event-driven inputs": ("event", {"columns": "f16", "event": EventDriven(gap_every=0)}),
    "StatePack of attention": (
        "pack",
        {"state_pack_kv": StatePackKV("binary", min_context=4, gap=9.0, gap_every=0, layers="")},
    ),
    "event-driven attention": ("event", {"event": EventDriven(target="kv", gap_every=0)}),
}


def generate(path: Path, tokens: list[int], **options: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    llm = load_small(path, 1, config=RuntimeConfig(**options))
    return llm, logits_of(llm, tokens, batch=1)


@pytest.mark.parametrize("name", [name for name in SKIPPING if name != "event-driven attention"])
def test_what_cannot_pay_is_switched_off(
    tiny: Path, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, smollm2_quantized: Path
) -> None:
    """One line, a reason, and no work afterwards."""
    key, options = SKIPPING[name]
    path = write_llama(tmp_path / "narrow.gguf", smollm2_quantized) if name == "StatePack of attention" else tiny
    llm, _ = generate(path, TOKENS, **options)
    metrics = llm.seeddelta.metrics()
    assert metrics[f"{key}.off"] == NO_SAVING, llm.seeddelta.switched_off
    assert metrics[f"{key}.saving"] < 0.02
    assert metrics[f"{key}.trial_tokens"] == 64
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [llm.seeddelta.switched_off[key]]
    assert lines[0].startswith(f"{name}: switched off, since it ")
    assert "--force" in lines[0]
    before = work_of(llm)
    llm.eval(TOKENS[:1])
    assert work_of(llm) == before


def work_of(llm: Any) -> tuple[float, ...]:
    metrics = llm.seeddelta.metrics()
    names = ("kwta.calls", "pack.calls", "event.calls", "attention.packed", "seeddelta.skipped_inputs")
    return tuple(metrics.get(name, 0) for name in names)


@pytest.mark.parametrize("name", list(SKIPPING))
def test_force_keeps_it_on(tiny: Path, name: str) -> None:
    """And then results depend on no time: the same bits twice."""
    key, options = SKIPPING[name]
    llm, logits = generate(tiny, TOKENS, force=True, **options)
    metrics = llm.seeddelta.metrics()
    assert f"{key}.off" not in metrics
    assert llm.seeddelta.switched_off == {}
    np.testing.assert_array_equal(generate(tiny, TOKENS, force=True, **options)[1], logits)


def test_events_that_fail_a_check_are_off_for_good(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The checks come early; what failed one computes as llama.cpp does from then on."""
    event = EventDriven(delta_theta=50.0, gap_tol=1e-6, rearm=1)
    llm, logits = generate(tiny, TOKENS[:12], columns="f16", event=event)
    metrics = llm.seeddelta.metrics()
    assert metrics["event.off"] == GAP
    assert metrics["event.off_places"] == metrics["event.enabled"]
    assert metrics["event.gap_failures"] > 0
    assert "error is beyond the tolerance" in llm.seeddelta.switched_off["event"]
    assert caplog.records[-1].getMessage() == llm.seeddelta.switched_off["event"]
    _, plain = generate(tiny, TOKENS[:12], columns="f16")
    np.testing.assert_allclose(logits[-1], plain[-1], atol=1e-4)
    forced = generate(tiny, TOKENS[:12], columns="f16", event=event, force=True)[0].seeddelta
    assert forced.metrics()["event.active"] > 0  # armed again after one token


@pytest.fixture(scope="module", params=["nemotron", "arcee"])
def relu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_quantized: Path) -> Path:
    path = tmp_path_factory.mktemp("zeros") / f"{request.param}.gguf"
    return write_architecture(path, smollm2_quantized, request.param, zeros=True)


@pytest.fixture(scope="module")
def stored(relu: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A model of exact zeros by its kinds of columns."""
    built = relu.with_suffix(".seeddelta.gguf")
    seeddelta.build(seeddelta.Recipe(input=relu, output=built, column_tensor=("ffn_down",), threads=2), progress=False)
    return {"f16": (relu, {"columns": "f16"}), "SeedΔ": (built, {})}


@pytest.mark.parametrize("kind", ["f16", "SeedΔ"])
def test_exact_zeros_are_skipped(stored: dict[str, tuple[Path, dict[str, Any]]], kind: str) -> None:
    """By default, counted, and with the same bits; 1 and 2 threads."""
    path, options = stored[kind]
    whole, expected = generate(path, TOKENS[:20], zeros=False, **options)
    assert whole.seeddelta.metrics()["seeddelta.skipped_inputs"] == 0
    assert "zeros.gates" not in whole.seeddelta.metrics()
    for threads in (1, 2):
        llm = load_small(path, threads, config=RuntimeConfig(force=True, **options))
        np.testing.assert_array_equal(logits_of(llm, TOKENS[:20], batch=1), expected)
        metrics = llm.seeddelta.metrics()
        assert metrics["zeros.gates"] == 2
        assert metrics["zeros.calls"] == 2 * 20
        assert 0.7 < metrics["zeros.share"] < 0.97
        assert metrics["seeddelta.skipped_inputs"] == round(metrics["zeros.share"] * 2 * 20 * 192)


def test_half_zeros_of_byte_lanes(smollm2_quantized: Path, tmp_path: Path) -> None:
    """So many inputs are left that all are multiplied: the same bits, and counted as what is left."""
    dense = write_architecture(tmp_path / "dense.gguf", smollm2_quantized, "nemotron")
    path = tmp_path / "columns.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, column_tensor=("ffn_down",), threads=2), progress=False)
    expected = generate(path, TOKENS[:20], zeros=False)[1]
    for threads in (1, 2):
        llm = load_small(path, threads, config=RuntimeConfig(force=True))
        np.testing.assert_array_equal(logits_of(llm, TOKENS[:20], batch=1), expected)
        metrics = llm.seeddelta.metrics()
        assert 0.4 < metrics["zeros.share"] < 0.55
        assert metrics["seeddelta.skipped_inputs"] == round(metrics["zeros.share"] * 2 * 20 * 192)


def test_zeros_are_on_trial_too(relu: Path) -> None:
    """The results keep their bits whatever the trial finds."""
    llm, logits = generate(relu, TOKENS, columns="f16")
    metrics = llm.seeddelta.metrics()
    assert metrics["zeros.trial_tokens"] == 64
    assert ("zeros" in llm.seeddelta.switched_off) == (metrics["zeros.saving"] < 0.02)
    np.testing.assert_array_equal(generate(relu, TOKENS, columns="f16", zeros=False)[1], logits)


def test_kwta_beside_zeros(relu: Path) -> None:
    """What exists and is chosen: zeros are never among the winners."""
    llm, _ = generate(relu, TOKENS[:20], columns="f16", kwta=Kwta(k={"ffn_down": 0.9}), force=True)
    metrics = llm.seeddelta.metrics()
    assert metrics["zeros.share"] > 0.7
    assert metrics["seeddelta.skipped_inputs"] == round(metrics["zeros.share"] * 2 * 20 * 192)
    assert metrics["kwta.keep_ratio"] == 1.0


def test_models_without_relu_have_no_zeros(tiny: Path) -> None:
    assert "zeros.gates" not in generate(tiny, TOKENS[:2], columns="f16")[0].seeddelta.metrics()


def test_sparsify_tells_the_zeros(relu: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    lines: list[str] = []
    seeddelta.sparsify(relu, text, keep=0.8, n_ctx=64, probe_chunks=1, threads=1, per_layer=False, say=lines.append)
    said = re.findall(r"([\d.]+)% of the inputs of (\w+) are exactly 0", lines[0])
    assert [(name, 70 < float(share) < 97) for share, name in said] == [("ffn_down", True)]
