"""The program itself: `python -m seeddelta`, completion, and the names of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import seeddelta
from seeddelta.errors import MissingFileError
from seeddelta.session import open_model


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seeddelta", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=60)


def test_it_is_a_module() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"seeddelta {seeddelta.__version__}\n")


def test_a_shell_completes_commands() -> None:
    words = {"_SEEDDELTA_COMPLETE": "complete_bash", "COMP_WORDS": "seeddelta insp", "COMP_CWORD": "1"}
    assert program(**words).stdout.split() == ["inspect"]


def test_help_and_what_is_of_a_gpu() -> None:
    assert program("-h").stdout == program("--help").stdout != ""
    assert program("run", "-h").stdout == program("run", "--help").stdout != ""
    done = program("run", "m.gguf", "-p", "a", "-ngl", "99")
    assert (done.returncode, done.stderr) == (
        1,
        "seeddelta: error: -ngl: seeddelta computes on the CPU; leave it out\n",
    )


def test_options_that_are_not_there_are_one_line() -> None:
    for arguments, told in (
        (("foo",), "no such command 'foo'; seeddelta -h lists the options"),
        (("quantize", "--foo"), "no such option: --foo; seeddelta quantize -h lists the options"),
    ):
        done = program(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"seeddelta: error: {told}\n")
    assert program("eval").stdout.startswith("Usage: seeddelta eval MODEL…")


def test_imatrix_is_a_function() -> None:
    from seeddelta.calibrate import capture

    assert seeddelta.imatrix is capture


def test_verbose_says_what_is_done(smollm2_quantized: Path) -> None:
    done = program("run", "-m", str(smollm2_quantized), "-p", "a", "-n", "1", "-t", "1", "-v", "-q")
    assert done.returncode == 0, done.stderr
    assert f"seeddelta.session: opening {smollm2_quantized} with a context of 512 and 1 threads" in done.stderr


def test_a_missing_model_is_named() -> None:
    with pytest.raises(MissingFileError, match=r"none\.gguf: no such file"):
        open_model("none.gguf")


def test_an_instruction_set_that_is_not_there(tiny_dense: Path, tmp_path: Path) -> None:
    """It is asked for when a model is opened, not by the threads that compute, which no exception may leave."""
    converted = tmp_path / "m.gguf"
    seeddelta.build(seeddelta.Recipe(input=tiny_dense, output=converted, effort="fast"), progress=False)
    for model in (converted, tiny_dense):
        done = program("run", "-m", str(model), "-p", "a", "-n", "1", SEEDDELTA_FORCE_ISA="mmx")
        assert done.returncode == 1
        assert "instruction set 'mmx' is not available on this machine; available: scalar" in done.stderr
        assert done.stderr.count("\n") == 1
