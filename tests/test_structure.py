"""The house: which folder may include which and that units of instruction sets share nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "cpp" / "src"
# Each folder includes from those before it (and from cpp/include) only.
FOLDERS = ("format", "simd", "gating", "linear", "attention", "encode", "ggml_host", "bindings")


def test_folders_are_known() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_includes_point_down(folder: str) -> None:
    above = set(FOLDERS[FOLDERS.index(folder) + 1 :])
    found = [
        f"{path.relative_to(SOURCE)} includes {target}"
        for path in sorted((SOURCE / folder).rglob("*.[ch]pp"))
        for target in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        if target.split("/")[0] in above
    ]
    assert not found


def test_core_has_no_weak_symbols_of_instruction_sets() -> None:
    """A function that two units share would run with the instructions of either. (Constants may be shared.)"""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed (apt install binutils)")
    objects = sorted((ROOT / "build").glob("**/isa_*.cpp.o"))
    if not objects:
        pytest.skip("no object files below build/: cmake -B build/dev . && cmake --build build/dev")
    shared = []
    for path in objects:
        done = subprocess.run(
            [nm, "--demangle", "--defined-only", str(path)], capture_output=True, text=True, check=True
        )
        lines = (line.split(maxsplit=2) for line in done.stdout.splitlines())
        shared += [f"{path.name}: {name}" for _, kind, name in lines if kind == "W"]
    assert not shared, shared[:10]
