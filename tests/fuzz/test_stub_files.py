"""Stub files whose placeholders are reached by stock llama.cpp."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("llama_cpp")

from stub_files import NAMES, look_at


def test_stock_llama_gives_no_number_over_a_hole(smollm2_quantized: Path, tmp_path: Path) -> None:
    names = ("llama", "gemma3n", "qwen3moe", "nemotron")
    viewed, known = look_at(tmp_path, smollm2_quantized, 24, Random(1), [name for name in names if name in NAMES])
    assert known
    assert viewed.wrong == []
    assert viewed.nan >= 12


@pytest.mark.slow
def test_two_thousand_views(smollm2_quantized: Path, tmp_path: Path) -> None:
    viewed, known = look_at(tmp_path, smollm2_quantized, 2000, Random(2))
    assert len(known) >= 8
    assert viewed.wrong == []
    assert viewed.nan + viewed.right + viewed.refused >= 2000
    assert viewed.nan >= 1500
