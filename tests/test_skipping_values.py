"""Which matrices the values of skipping are for."""

from __future__ import annotations

from typing import Any

import pytest
from seeddelta.runtime import Kwta
from seeddelta.settings.patterns import parse_values


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("ffn_down", {}, 0.65), ("ffn_up", {}, 0.85), ("attn_output", {}, 0.75), ("attn_q", {}, None),
    ("ffn_down", {"k": 0.4}, 0.4), ("attn_q", {"k": 0.4, "target": "mlp"}, None),
    ("attn_q", {"k": {"ffn": 0.4}}, None), ("ffn_up", {"k": {"ffn": 0.4, "blk.7.*": 0.9}}, 0.9),
    ("ffn_up", {"k": {"blk.7.*": 0.9, "ffn": 0.4}}, 0.4), ("ffn_down", {"k_abs": 8}, None),
])  # fmt: skip
def test_the_last_pattern_that_fits_holds(name: str, options: dict[str, Any], expected: float | None) -> None:
    assert Kwta(**options).keep_of((f"blk.7.{name}.weight",)) == expected


def test_values() -> None:
    assert parse_values("0.25") == 0.25
    assert parse_values("0.5, ffn_down=0.2") == {"*": 0.5, "ffn_down": 0.2}
    with pytest.raises(ValueError, match="'half' is no number"):
        parse_values("half")
