"""Interpreters that seeddelta starts import nothing from the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from seeddelta.children import python_command

pytest.importorskip("llama_cpp")
TRAPS = ("random", "llama_cpp", "gguf", "json", "numpy", "tempfile", "socket")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with modules that leave a trace and print when they are imported."""
    for name in TRAPS:
        trace = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})"
        (tmp_path / f"{name}.py").write_text(f"{trace}\nprint('hi')\n")
    return tmp_path


def run(folder: Path, *arguments: object) -> str:
    program = "import sys; from seeddelta.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [*python_command(program), *map(str, arguments)], capture_output=True, text=True, cwd=folder, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text()
    return done.stdout


def test_a_command_imports_what_this_process_would(trapped: Path) -> None:
    command = python_command("import json, random, llama_cpp; print(json.__file__)")
    done = subprocess.run(command, capture_output=True, text=True, cwd=trapped)
    assert done.stdout.strip() == sys.modules["json"].__file__
    assert not (trapped / "imported").exists()


def test_evaluations(trapped: Path, tiny_dense: Path, tiny_text: Path) -> None:
    shown = run(trapped, "eval", "-m", tiny_dense, "-f", tiny_text, "-c", "64", "--chunks", "2", "--reps", "1")
    assert "perplexity" in shown
    assert "tokens/s" in run(trapped, "bench", "-m", tiny_dense, "-p", "8", "-n", "2", "-r", "1", "-q")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="multiprocessing has no way to say so before Python 3.11")
def test_workers_of_a_build(trapped: Path, tiny_dense: Path, tiny_text: Path) -> None:
    before = dict(os.environ)
    output = trapped / "o.gguf"
    run(
        trapped, "quantize", tiny_dense, "-o", output, "--bits", "4", "-f", tiny_text, "-c", "64", "--chunks", "4",
        "--executor", "processes:2",
    )  # fmt: skip
    assert output.is_file()
    assert dict(os.environ) == before
