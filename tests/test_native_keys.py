"""Chosen keys and events of the KV cache by the preloaded library: the bits and the counters of `seeddelta.load` with
the same settings, for SeedΔ models and ordinary ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.runtime import RuntimeConfig
from seeddelta.settings.assign import Assignment
from tiny_llama import N_LAYERS

pytest.importorskip("llama_cpp")

from native_helpers import BATCHES, Told, of_both_kinds, tell

TOKENS = [[(7 * i * i + 3 * i) % 400 + 32 for i in range(600)], *[[token] for token in range(40, 72)]]
ROOM = {"n_ctx": 1024, "n_batch": 1024}
SINGLE = len(TOKENS) - 1
KEYS = "state_pack_kv.gap=9 state_pack_kv.min_context=16 state_pack_kv.recent=8 state_pack_kv.layers=0=exact"
SETTINGS = {
    f"state_pack_kv.mode=ternary state_pack_kv.budget=0.1 {KEYS}": "pack",
    "state_pack_kv.mode=binary state_pack_kv.gap=9 state_pack_kv.layers=0.0=exact,1=binary:0.2 "
    "state_pack_kv.min_context=16": "pack",
    f"kwta.target=kv kwta.k_abs=24 {KEYS}": "pack",
    "event.target=kv event.delta_theta=2 event.gap_every=4 event.gap_tol=9 state_pack_kv.mode=exact "
    "state_pack_kv.min_context=16": "event",
}


@pytest.fixture(scope="module")
def models(smollm2_quantized: Path, model_dir: Path) -> dict[str, Path]:
    return of_both_kinds(model_dir / "native-keys", smollm2_quantized)


@pytest.fixture(params=["seeddelta", "ordinary"])
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


def by_library(path: Path, folder: Path, settings: str, **options: Any) -> tuple[Told, dict[str, Any]]:
    jobs = [{"load": "m", "path": path, **ROOM}, {"eval": "m", "tokens": TOKENS, **options}]
    told = tell(jobs, folder, set=settings, metrics_json=str(folder / "m.json"))
    assert told.code == 0, told.stderr[-2000:]
    assert told.results[0], told.lines
    found = json.loads((folder / "m.json").read_text())
    return told, found.get(str(path)) or found["ordinary models"]


def by_python(path: Path, settings: str, *, restore: bool = False) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    given = Assignment(RuntimeConfig)
    for word in settings.split():
        given.text(word)
    llm = seeddelta.load(
        path, config=given.make(), n_threads=2, n_threads_batch=2, logits_all=True, flash_attn=True, **ROOM
    )
    for batch in TOKENS:
        llm.eval(batch)
        if restore:
            llm.load_state(llm.save_state())
    logits, metrics = np.array(llm.scores[: sum(map(len, TOKENS))]), llm.seeddelta.metrics()
    llm.close()
    return logits, metrics


def chosen(metrics: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in metrics.items() if name.startswith(("attention.", "pack.", "event."))}
    kept.pop("event.budget_ms_used", None)  # a time
    return kept


@pytest.mark.parametrize("settings", SETTINGS)
def test_bits_and_counters_are_those_of_python(settings: str, model: Path, tmp_path: Path) -> None:
    told, found = by_library(model, tmp_path, f"{settings} force=on")
    assert told.lines == []
    logits, expected = by_python(model, f"{settings} force=on")
    np.testing.assert_array_equal(told.logits(1), logits)
    assert chosen(found) == pytest.approx(chosen(expected))
    if SETTINGS[settings] == "pack":
        assert found["attention.packed"] >= SINGLE
        assert found["pack.density"] < 0.9
    else:
        assert found["attention.events"] > 0
        assert found["event.windows_reused"] > 0
        assert found["event.enabled"] == N_LAYERS
    assert not np.array_equal(logits, by_python(model, "attention=exact")[0])


def test_what_is_read_into_a_cache_is_packed_again(model: Path, tmp_path: Path) -> None:
    settings = f"{next(iter(SETTINGS))} force=on"
    told, found = by_library(model, tmp_path, settings, restore=True)
    logits, expected = by_python(model, settings, restore=True)
    np.testing.assert_array_equal(told.logits(1), logits)
    assert chosen(found) == pytest.approx(chosen(expected))
    assert found["pack.rebuilds"] >= SINGLE - 1
    assert by_library(model, tmp_path, settings)[1]["pack.rebuilds"] == 0


def test_the_choice_is_on_trial(model: Path, tmp_path: Path) -> None:
    """Of a tiny model it costs more than it saves; or the trial has just begun."""
    settings = next(iter(SETTINGS))
    _, found = by_library(model, tmp_path, settings)
    assert 0 < found["pack.trial_tokens"] <= SINGLE
    assert found["pack.off"] in (0, 1)
    assert "pack.trial_tokens" not in by_library(model, tmp_path, f"{settings} force=on")[1]


def test_more_than_one_sequence_is_refused(model: Path, tmp_path: Path) -> None:
    jobs = [{"load": "m", "path": model, "sequences": 2}]
    told = tell(jobs, tmp_path, set=next(iter(SETTINGS)))
    assert (told.code, told.results) == (0, [False])
    assert len(told.lines) == 1
    assert "keys chosen by their bits follow the tokens of one sequence; leave them out, or serve one" in told.lines[0]
    assert tell(jobs, tmp_path, set="attention=exact").results == [True]


def test_a_head_that_is_not_there(model: Path, tmp_path: Path) -> None:
    jobs = [{"load": "m", "path": model}, {"eval": "m", "tokens": BATCHES}]
    told = tell(jobs, tmp_path, set="state_pack_kv.layers=0.7=exact state_pack_kv.min_context=1")
    assert told.results == [True, None]
    assert "state pack layers: layer 0 has no KV head 7 (they count from 0)" in told.lines[0]
    told = tell(jobs, tmp_path, set="state_pack_kv.layers=0-9=exact state_pack_kv.min_context=1")
    assert told.results == [True, None]
    assert "no layer has a cache of keys that can be packed" in told.lines[0]
