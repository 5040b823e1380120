"""The program itself: `python -m seeddelta`, completion, and the names of the package."""

from __future__ import annotations

import os
import subprocess
import sys

import seeddelta


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seeddelta", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=60)


def test_it_is_a_module() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"seeddelta {seeddelta.__version__}\n")


def test_a_shell_completes_commands() -> None:
    words = {"_SEEDDELTA_COMPLETE": "complete_bash", "COMP_WORDS": "seeddelta insp", "COMP_CWORD": "1"}
    assert program(**words).stdout.split() == ["inspect"]


def test_imatrix_is_a_function() -> None:
    from seeddelta.calibrate import capture

    assert seeddelta.imatrix is capture
