"""Event-driven attention inside llama.cpp: exact when everything is computed, whatever happens to the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from cache_machine import (  # noqa: E402
    Machine,
    load_fixture,  # noqa: F401
    tiny_fixture,  # noqa: F401
    two_sequences_fixture,  # noqa: F401
    walk,
)
from llama_helpers import divergence  # noqa: E402
from seeddelta import RuntimeConfig, StatePackKV  # noqa: E402
from seeddelta.errors import ConfigError  # noqa: E402
from seeddelta.runtime import EventDriven  # noqa: E402
from tiny_llama import N_KV_HEAD, N_LAYERS, N_VOCAB  # noqa: E402

Array = np.ndarray[Any, Any]
EXACT = StatePackKV("exact", min_context=0)
ROOM: dict[str, Any] = {"n_ctx": 1024, "n_batch": 512, "logits_all": False}
FORMS = pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "products"])
NO_CHECKS: dict[str, Any] = {"gap_every": 0}


def events(**options: Any) -> RuntimeConfig:
    return RuntimeConfig(state_pack_kv=EXACT, event=EventDriven(target="kv", **options), force=True)


def run(llm: Any, prompt: int = 700, count: int = 40) -> Array:
    """Logits of single tokens behind a prompt."""
    machine = Machine(llm)
    tokens = np.random.default_rng(0).integers(32, N_VOCAB, prompt + count).tolist()
    for at in range(0, prompt, 64):
        machine.decode(tokens[at : min(at + 64, prompt)], at, 0)
    rows = [machine.decode([tokens[at]], at, 0) for at in range(prompt, prompt + count)]
    machine.close()
    return np.stack(rows)


@pytest.mark.parametrize("options", [
    {"delta_theta": 0.0} | NO_CHECKS, {"delta_theta": 9.0, "age_max": 0} | NO_CHECKS,
    {"delta_theta": 9.0, "gap_every": 1, "gap_tol": 9.0},
])  # fmt: skip
@FORMS
def test_everything_computed_is_exact(
    tiny: Path, load: Callable[..., Any], options: dict[str, Any], flash_attn: bool
) -> None:
    exact = run(load(tiny, StatePackKV("exact"), flash_attn=flash_attn, **ROOM))
    llm = load(tiny, events(**options), flash_attn=flash_attn, **ROOM)
    np.testing.assert_array_equal(run(llm), exact)
    metrics = llm.seeddelta.metrics()
    assert llm.seeddelta.chooses_keys
    assert metrics["attention.events"] == metrics["event.calls"] == 40 * N_LAYERS
    assert metrics["attention.exact"] == metrics["attention.packed"] == metrics["pack.enabled"] == 0
    assert metrics["event.full"] == N_LAYERS  # the first token behind the prompt
    assert metrics["event.windows"] == 39 * N_LAYERS * N_KV_HEAD * 6
    if options["gap_every"]:
        assert metrics["event.gap_checks"] == 39 * N_LAYERS
        assert 0 < metrics["event.quality_gap"] < 9
    else:
        assert metrics["event.windows_reused"] == 0


def test_the_threshold_of_the_kv_cache(tiny: Path, load: Callable[..., Any]) -> None:
    """It is another one than that of inputs."""
    reused = {}
    for theta in (None, 0.01, 0.15):
        llm = load(tiny, events(**NO_CHECKS | ({} if theta is None else {"delta_theta": theta})), **ROOM)
        run(llm)
        reused[theta] = llm.seeddelta.metrics()["event.windows_reused"]
    assert reused[None] == reused[0.01] < reused[0.15]


def test_windows_are_reused(tiny: Path, load: Callable[..., Any]) -> None:
    exact = run(load(tiny, StatePackKV("exact"), **ROOM))
    results = []
    for threads in (1, 2, 3):
        llm = load(tiny, events(delta_theta=0.3, gap_tol=9.0), threads=threads, **ROOM)
        results.append(run(llm))
        metrics = llm.seeddelta.metrics()
        assert metrics["event.enabled"] == metrics["event.active"] == N_LAYERS
        assert 0 < metrics["event.windows_reused"] < metrics["event.windows"] / 2
        assert 0 < metrics["event.topk_kept"] < 1
        assert metrics["event.age"] > 0
        assert metrics["event.heads"] == 39 * N_LAYERS * N_KV_HEAD >= metrics["event.heads_computed"] > 0
        assert metrics["event.gap_checks"] == 5 * N_LAYERS  # 1, 3, 7, 15 and 31 tokens behind the prompt's
        assert 0 < metrics["event.quality_gap"] < 1
        assert metrics["event.budget_ms_used"] > 0
        assert metrics["event.wrong"] == metrics["event.gap_failures"] == 0
        assert metrics["event.bytes"] > 0
    assert not np.array_equal(results[0], exact)
    assert divergence(exact, results[0]) < 0.3
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_layer_with_too_large_an_error_is_exact_for_a_while(tiny: Path, load: Callable[..., Any]) -> None:
    exact = run(load(tiny, StatePackKV("exact"), **ROOM))
    llm = load(tiny, events(delta_theta=9.0, gap_tol=1e-6, gap_every=1, rearm=1000), **ROOM)
    np.testing.assert_array_equal(run(llm), exact)
    metrics = llm.seeddelta.metrics()
    assert metrics["event.active"] == 0
    assert metrics["event.gap_failures"] == N_LAYERS
    assert metrics["attention.exact"] == 38 * N_LAYERS
    assert metrics["event.full"] == 39 * N_LAYERS


def test_a_budget_limits_the_time(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, events(delta_theta=0.0, budget_ms=1e-6, gap_every=0), **ROOM)
    run(llm)
    metrics = llm.seeddelta.metrics()
    assert metrics["event.budget_hits"] > 30 * N_LAYERS
    assert metrics["event.topk_kept"] < 0.3


@pytest.mark.parametrize("options", [{"delta_theta": 0.0}, {"delta_theta": 9.0, "age_max": 0}], ids=str)
@pytest.mark.parametrize("unified", [True, False])
@FORMS
def test_whatever_happens_to_the_cache(
    tiny: Path,
    load: Callable[..., Any],
    two_sequences: Callable[[bool], None],
    unified: bool,
    flash_attn: bool,
    options: dict[str, Any],
) -> None:
    """Random walks: with everything computed the logits are those of exact attention. A third model reuses what it can,
    for queries that are far away, and every token is compared: a window is never reused for other keys or masks."""
    two_sequences(unified)
    configs = (EXACT, events(**options, **NO_CHECKS), events(delta_theta=9.0, **NO_CHECKS))
    models = [
        load(tiny, config, **(ROOM | {"n_ctx": 1024 if unified else 2048, "flash_attn": flash_attn}))
        for config in configs
    ]
    machines = [Machine(llm) for llm in models]
    rng = np.random.default_rng(3)
    secret = walk(machines, rng, room=760, prompt=440, tokens=4)
    metrics = [llm.seeddelta.metrics() for llm in models]
    for machine in machines:
        machine.close()
    assert metrics[0]["attention.exact"] == metrics[1]["attention.events"] == metrics[2]["attention.events"] > 30
    assert metrics[1]["event.windows"] > metrics[1]["event.windows_reused"] == 0
    assert metrics[2]["event.windows_reused"] > 0
    assert metrics[2]["event.resets"] > 0
    assert metrics[2]["event.wrong"] == 0 or secret


@FORMS
def test_a_prompt_a_loaded_state_and_a_shift_forget(tiny: Path, load: Callable[..., Any], flash_attn: bool) -> None:
    exact, reusing = (
        Machine(load(tiny, config, flash_attn=flash_attn, **ROOM))
        for config in (EXACT, events(delta_theta=9.0, **NO_CHECKS))
    )
    tokens = np.random.default_rng(0).integers(32, N_VOCAB, 900).tolist()

    def both(at: int, count: int = 1) -> tuple[Array, Array]:
        first, second = (machine.decode(tokens[at : at + count], at, 0) for machine in (exact, reusing))
        return first, second

    def metric(name: str) -> float:
        return float(reusing.llm.seeddelta.metrics()[name])

    both(0, 400)
    both(400, 240)
    np.testing.assert_array_equal(*both(640))  # the first behind a prompt
    state = exact.save()
    assert not np.array_equal(*both(641))
    assert metric("event.resets") == 0
    for machine in (exact, reusing):
        machine.restore(state)
    np.testing.assert_array_equal(*both(641))
    assert metric("event.resets") == N_LAYERS
    for machine in (exact, reusing):
        machine.restore(state)
    both(641)
    both(642, 30)
    assert metric("event.resets") == 3 * N_LAYERS
    np.testing.assert_array_equal(*both(672))
    assert not np.array_equal(*both(673))
    for machine in (exact, reusing):
        machine.restore(state)
        machine.shift(4, 64)
    np.testing.assert_array_equal(*both(577))
    assert metric("event.wrong") == 0
    for machine in (exact, reusing):
        machine.close()


def test_a_state_that_is_loaded_secretly_is_noticed(tiny: Path, load: Callable[..., Any]) -> None:
    exact, reusing = (Machine(load(tiny, config, **ROOM)) for config in (EXACT, events(delta_theta=9.0, **NO_CHECKS)))
    first, second = np.random.default_rng(0).integers(32, N_VOCAB, (2, 710)).tolist()
    states = []
    for tokens in (first, second):
        for machine in (exact, reusing):
            machine.clear()
            for at in range(0, 700, 50):
                machine.decode(tokens[at : at + 50], at, 0)
            for at in range(700, 705):
                machine.decode([tokens[at]], at, 0)
        states.append(exact.save())
    for machine in (exact, reusing):
        machine.restore(states[0], secretly=True)
    results = [machine.decode([100], 705, 0) for machine in (exact, reusing)]
    np.testing.assert_array_equal(*results)
    assert reusing.llm.seeddelta.metrics()["event.wrong"] == N_LAYERS
    for machine in (exact, reusing):
        machine.close()


def test_short_contexts_are_exact(tiny: Path, load: Callable[..., Any]) -> None:
    llm = load(tiny, RuntimeConfig(event=EventDriven(target="kv", delta_theta=9.0), force=True), **ROOM)
    run(llm, 300, 5)
    metrics = llm.seeddelta.metrics()
    assert (metrics["attention.events"], metrics["attention.exact"]) == (0, 5 * N_LAYERS)


def test_what_excludes_events() -> None:
    for mode in ("binary", "ternary"):
        with pytest.raises(ConfigError, match="Leave one of them out"):
            RuntimeConfig(state_pack_kv=StatePackKV(mode), event=EventDriven(target="kv"))
    with pytest.raises(ConfigError, match="mlp, attn, both or kv"):
        EventDriven(target="heads")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="age_max"):
        EventDriven(age_max=-1)
    config = RuntimeConfig.from_dict({"event": {"target": "kv", "delta_theta": 0.1}})
    assert config.chosen_keys == StatePackKV("exact")
    assert not config.skips
