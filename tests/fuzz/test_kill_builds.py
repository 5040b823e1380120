"""A few kills of builds at random moments, and what becomes of the files that they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from kill_builds import kill_builds, write_dense
from seeddelta import Recipe, build
from seeddelta.gguf.writer import atomic_output, hold

pytest.importorskip("fcntl")

LEAVES = """
import os, signal, sys
from seeddelta import Recipe, build
from seeddelta.gguf import writer
writer._mode_of_new_file = lambda path: os.kill(os.getpid(), signal.SIGKILL) if path.suffix == ".gguf" else 0o600
build(Recipe(input=sys.argv[1], output=sys.argv[2], no_checkpoint=True), progress=False)
"""


def test_killed_builds_end_in_the_same_bytes(tmp_path: Path) -> None:
    killed = kill_builds(tmp_path, 5, Random(3))
    assert killed.wrong == []
    assert killed.kills == 5
    assert killed.builds >= 1


def test_what_a_killed_build_leaves_goes_with_the_next(tmp_path: Path) -> None:
    dense, output = write_dense(tmp_path, 1), tmp_path / "built" / "out.gguf"
    output.parent.mkdir()
    command = [sys.executable, "-c", LEAVES, str(dense), str(output)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    left = sorted(path.suffix for path in output.parent.iterdir())
    assert left == [".part", ".parts"]
    build(Recipe(input=dense, output=output, no_checkpoint=True), progress=False)
    assert os.listdir(output.parent) == ["out.gguf"]


def test_what_another_process_writes_stays(tmp_path: Path) -> None:
    with atomic_output(tmp_path / "a") as first:
        first.write_text("first")
        with atomic_output(tmp_path / "a") as second:
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert hold(one.fileno())
        assert not hold(other.fileno())
