"""A few rounds of the soak: its counters count, and what it does is done."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("llama_cpp")

from models import model_files
from soak import Soak, run
from tiny_llama import write_llama


@pytest.mark.slow
def test_rounds(smollm2_quantized: Path, tmp_path: Path) -> None:
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    soak = run(model_files(tmp_path, smollm2_quantized), dense, Random(2), minutes=10, rounds=5)
    assert soak.errors == []
    assert soak.rounds == len(soak.resident) == 5
    assert soak.nonfinite_logits == soak.nonfinite_events == 0
    assert soak.done["loads"] > 5
    assert soak.done["tokens"] > 100


def test_growth_is_of_the_later_quarters() -> None:
    assert Soak(resident=[50, 80, 100, 100, 100, 100, 101, 103]).growth == pytest.approx(0.02)
    assert Soak(resident=[1, 2, 3]).growth == 0
