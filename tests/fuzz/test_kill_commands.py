"""Kills of the commands that write files, and of processes that decode."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("resource")

from kill_commands import kill_commands


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_kills_harm_nothing(smollm2_quantized: Path, tmp_path: Path) -> None:
    killed = kill_commands(tmp_path, smollm2_quantized, 6, Random(5), ("imatrix", "decode"))
    assert killed.wrong == []
    assert killed.kills >= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_hundred_kills(smollm2_quantized: Path, tmp_path: Path) -> None:
    killed = kill_commands(tmp_path, smollm2_quantized, 104, Random(6))
    assert killed.wrong == []
    assert killed.kills >= 100
