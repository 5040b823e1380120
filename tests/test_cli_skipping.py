"""Options of skipping on the command line, and which matrices they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from seeddelta.cli._skipping import _OPTIONS, config_of, model_options
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackKV, StatePackMLP
from seeddelta.runtime.skipping import parse_values


def config(**given: Any) -> dict[str, Any]:
    assert set(given) <= set(_OPTIONS)
    return config_of(dict.fromkeys(_OPTIONS) | given, skip_prompt=True)


def test_nothing_given_is_nothing() -> None:
    assert config() == config(skip_prompt=True) == config(kwta="off", event_driven="off", state_pack="none") == {}


def test_every_option_arrives() -> None:
    """RuntimeConfig takes what the options become."""
    made = RuntimeConfig.from_dict(
        config(
            columns="i8", column_targets="ffn,attn_q", kwta_k="ffn_down=0.5,blk.0.*=1", kwta_temp=0.5, kwta_duty=2,
            kwta_target="mlp", kwta_score="magnitude", kwta_renorm=True, state_pack="ternary", skip_prompt=False,
            state_pack_eps="0.1,ffn_down=0.2", state_pack_relative=0.3, state_pack_rho="0.6", state_pack_popcnt=False,
            state_pack_target="both",
        )
    )  # fmt: skip
    assert made.columns == "i8"
    assert made.column_targets == ("ffn", "attn_q")
    assert made.kwta == Kwta(
        k={"ffn_down": 0.5, "blk.0.*": 1.0}, temperature=0.5, duty=2, target="mlp", score="magnitude", renormalise=True
    )
    assert made.state_pack_mlp == StatePackMLP(
        mode="ternary", eps={"*": 0.1, "ffn_down": 0.2}, relative=0.3, rho=0.6, popcnt=False, target="both"
    )
    assert made.skip_prompt is False
    made = RuntimeConfig.from_dict(
        config(
            columns="f16", event_budget_ms=4.0, event_quorum=0.6, event_topk=0.4, event_delta_theta=0.01,
            event_gap_tol=0.03, event_gap_every=8, event_rearm=9, event_age_max=10, event_stale_beta=0.9,
            event_stale_lambda=0.1, event_target="attn", kwta="on", kwta_k_abs=7,
        )
    )  # fmt: skip
    assert made.event == EventDriven(
        delta_theta=0.01, topk=0.4, quorum=0.6, budget_ms=4.0, stale_beta=0.9, stale_lambda=0.1, age_max=10,
        gap_tol=0.03, gap_every=8, rearm=9, target="attn",
    )  # fmt: skip
    assert made.kwta == Kwta(k_abs=7)
    over_keys = RuntimeConfig.from_dict(config(event_target="kv", event_budget_ms=2.0))
    assert over_keys.event == EventDriven(target="kv", budget_ms=2.0)
    assert over_keys.attention == StatePackKV("exact")
    assert made.skip_prompt is True
    assert RuntimeConfig.from_dict(config(kwta="on")).kwta == Kwta()


@pytest.mark.parametrize(("given", "message"), [
    ({"kwta": "maybe"}, "on or off"), ({"kwta": "off", "kwta_k": "0.5"}, "contradicts"),
    ({"event_driven": "off", "event_topk": 0.5}, "contradicts"), ({"kwta_k": "half"}, "--kwta-k half"),
    ({"state_pack_eps": "0.1"}, "needs --state-pack"), ({"state_pack": "binary", "state_pack_rho": "x"}, "rho x"),
])  # fmt: skip
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**given)


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("ffn_down", {}, 0.6), ("ffn_up", {}, 0.8), ("attn_output", {}, 0.6), ("attn_q", {}, None),
    ("ffn_down", {"k": 0.4}, 0.4), ("attn_q", {"k": 0.4, "target": "mlp"}, None),
    ("attn_q", {"k": {"ffn": 0.4}}, None), ("ffn_up", {"k": {"ffn": 0.4, "blk.7.*": 0.9}}, 0.9),
    ("ffn_up", {"k": {"blk.7.*": 0.9, "ffn": 0.4}}, 0.4), ("ffn_down", {"k_abs": 8}, None),
])  # fmt: skip
def test_the_last_pattern_that_fits_holds(name: str, options: dict[str, Any], expected: float | None) -> None:
    assert Kwta(**options).keep_of((f"blk.7.{name}.weight",)) == expected


def test_values() -> None:
    assert parse_values("0.25", "--x") == 0.25
    assert parse_values("0.5, ffn_down=0.2", "--x") == {"*": 0.5, "ffn_down": 0.2}


def test_the_first_of_several_models_is_the_reference(smollm2_quantized: Path) -> None:
    skipping = {"columns": "f16", "kwta": {"k": 0.5}}
    assert model_options([smollm2_quantized], {}, skipping) == [{"config": skipping}]
    assert model_options([smollm2_quantized] * 2, {"fallback": "x"}, skipping) == [{}, {"config": skipping}]
    assert model_options([smollm2_quantized] * 2, {}, {}) == [{}, {}]


@pytest.mark.parametrize("command", ["run", "eval", "bench"])
def test_help_has_the_options(command: str, capfd: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    out = capfd.readouterr().out
    for flag in ("--columns", "--kwta-k", "--kwta-duty", "--state-pack-eps", "--event-delta-theta", "--skip-prompt"):
        assert flag in out
