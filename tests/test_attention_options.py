"""Options of our own attention: what they may be, and where they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from cache_machine import (  # noqa: E402
    load_fixture,  # noqa: F401
    tiny_fixture,  # noqa: F401
    two_sequences_fixture,  # noqa: F401
)
from seeddelta import RuntimeConfig, StatePackKV  # noqa: E402
from seeddelta.errors import ConfigError  # noqa: E402

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode 'both'"),
        ({"budget": 0.0}, "budget 0.0"),
        ({"mass": 1.5}, "mass"),
        ({"density": 0.0}, "density"),
        ({"gap": -1.0}, "gap"),
        ({"layers": "3-1=binary"}, "layers '3-1=binary'"),
        ({"layers": "all=binary"}, "write for example"),
        ({"layers": "1=binary:-2"}, "layers"),
        ({"layers": "1.2-1=exact"}, "cannot be read"),
        ({"layers": "1.=exact"}, "12.0-1=exact"),
        ({"layers": "3.1=binary"}, "KV heads of layer 3 have binary and ternary bits"),
        ({"layers": "2-5=binary,4.0=ternary"}, "layer 4 .* 4=binary or 4=ternary"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StatePackKV(**options)


def test_options_from_json() -> None:
    options: Any = {"mode": "ternary", "layers": "0=exact, 2-3=binary:0.125"}
    config = RuntimeConfig.from_dict({"state_pack_kv": options})
    assert config.state_pack_kv == StatePackKV(**options)
    assert config.state_pack_kv.overrides() == [(0, 0, -1, -1, "exact", 0.25), (2, 3, -1, -1, "binary", 0.125)]


def test_layers_and_heads() -> None:
    pack = StatePackKV("binary", layers="12.3=exact, 5-6.0-2=binary:0.5, 7=ternary, 7.1=none, 8.1=exact:0.1")
    assert pack.overrides() == [
        (12, 12, 3, 3, "exact", 0.25),
        (5, 6, 0, 2, "binary", 0.5),
        (7, 7, -1, -1, "ternary", 0.25),
        (7, 7, 1, 1, "exact", 0.25),
        (8, 8, 1, 1, "exact", 0.1),
    ]
    StatePackKV("binary", layers="3.0=ternary,3=binary")  # the last holds
