"""The installed C++ API: the example compiles against the wheel's headers and library, and its product is right."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import seeddelta

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "cpp" / "example"


def test_headers_include_nothing_of_ours_but_themselves() -> None:
    public = ROOT / "cpp" / "include"
    for header in public.rglob("*.hpp"):
        for line in header.read_text(encoding="utf-8").splitlines():
            if line.startswith('#include "'):
                assert (public / line.split('"')[1]).is_file(), f"{header.name}: {line}"


def test_the_example_computes(tmp_path: Path) -> None:
    if not (Path(seeddelta.cmake_dir()) / "seeddeltaConfig.cmake").is_file():
        pytest.skip("seeddelta is not installed (a source tree has no CMake package): pip install .")
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed: pip install cmake")
    for command in (
        [cmake, "-S", str(EXAMPLE), "-B", str(tmp_path), f"-Dseeddelta_DIR={seeddelta.cmake_dir()}"],
        [cmake, "--build", str(tmp_path)],
        [str(tmp_path / "example")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("row 0: ")
