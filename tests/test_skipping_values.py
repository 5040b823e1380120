"""Which matrices the values of skipping are for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeddelta import _core
from seeddelta.runtime import Kwta, RuntimeConfig
from seeddelta.settings.patterns import parse_values
from seeddelta.settings.skipping import DEFAULT_KEEP

pytest.importorskip("llama_cpp")

from seeddelta.runtime.library import loaded_ggml
from seeddelta.runtime.options import core_options
from tiny_models import write_model


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("ffn_down", {}, 0.65), ("ffn_up", {}, 0.85), ("attn_output", {}, 0.75), ("attn_q", {}, None),
    ("ffn_down", {"k": 0.4}, 0.4), ("attn_q", {"k": 0.4, "target": "mlp"}, None),
    ("attn_q", {"k": {"ffn": 0.4}}, None), ("ffn_up", {"k": {"ffn": 0.4, "blk.1.*": 0.9}}, 0.9),
    ("ffn_up", {"k": {"blk.1.*": 0.9, "ffn": 0.4}}, 0.4),
])  # fmt: skip
def test_the_last_pattern_that_fits_holds(name: str, options: dict[str, Any], expected: float | None) -> None:
    assert keep_of(name, **options) == expected


def metrics_of(name: str, **options: Any) -> dict[str, Any]:
    """What is told of KWTA with one matrix."""
    matrix = np.ones((64, 64), np.float16)
    settings = core_options(RuntimeConfig(columns="f16", kwta=Kwta(**options)))
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "model.gguf", {f"blk.1.{name}.weight": matrix})
        model = _core.ServedModel(path, loaded_ggml(), settings)
    metrics = dict(_core.metrics(model, _core.GraphHook(model.registry)))
    assert len(model.gates) == metrics["kwta.gates"]
    return metrics


def keep_of(name: str, **options: Any) -> float | None:
    """What KWTA keeps of the inputs of a matrix, which is told where it is tuned; None: it has no gate."""
    metrics = metrics_of(name, gap_tol=1.0, **options)
    return float(metrics["kwta.k"]) if metrics["kwta.gates"] else None


def test_a_number_is_for_every_matrix() -> None:
    assert [metrics_of(name, k_abs=8)["kwta.gates"] for name in ("ffn_down", "attn_q")] == [1, 1]


@pytest.mark.parametrize(("pattern", "fits"), [
    ("*", True), ("blk.1.*", True), ("blk.?.ffn_down.weight", True), ("blk.[0-7].*", True), ("blk.[!1].*", False),
    ("blk.[!2-9].ffn*t", True), ("blk.1", False), ("*down*", True), ("*Down*", False), ("[b]lk*", True), ("[", False),
])  # fmt: skip
def test_shell_patterns(pattern: str, fits: bool) -> None:
    assert (keep_of("ffn_down", k={pattern: 0.5}) == 0.5) == fits


def test_both_have_the_same_default() -> None:
    for name in ("ffn_down", "ffn_gate", "ffn_up", "attn_output", "attn_q"):
        assert keep_of(name) == keep_of(name, k=DEFAULT_KEEP)


def test_values() -> None:
    assert parse_values("0.25") == 0.25
    assert parse_values("0.5, ffn_down=0.2") == {"*": 0.5, "ffn_down": 0.2}
    with pytest.raises(ValueError, match="'half' is no number"):
        parse_values("half")
