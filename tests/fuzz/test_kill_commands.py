"""Kills of the commands that write files, and of processes that decode; in a process of its own, which forks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("resource")


def _kills(*options: str) -> int:
    program = [sys.executable, str(Path(__file__).with_name("kill_commands.py")), *options]
    child = subprocess.run(program, capture_output=True, text=True, timeout=900, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    found = re.search(r"(\d+) kills, \d+ commands ended, 0 wrong", child.stdout)
    assert found is not None, child.stdout
    return int(found[1])


def test_kills_harm_nothing() -> None:
    assert _kills("--kills", "6", "--seed", "5", "--only", "imatrix,decode") >= 4


@pytest.mark.slow
def test_a_hundred_kills() -> None:
    assert _kills("--kills", "104", "--seed", "6") >= 100
