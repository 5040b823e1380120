"""NEON kernels against the scalar definition, bit for bit: cpp/tests/kernel_test.cpp for AArch64, run under QEMU."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ON_ARM = platform.machine() in ("aarch64", "arm64")


def find(*names: str) -> str:
    """The first of these programs that is installed; skips the test when there is none."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip(
        f"{' or '.join(names)} is not installed (apt install g++-aarch64-linux-gnu qemu-user; pip install cmake ninja)"
    )


@pytest.fixture(scope="module")
def kernel_test(tmp_path_factory):
    """The command that runs kernel_test for AArch64, without arguments."""
    pytest.importorskip("pythran", reason="carries the headers of xsimd: pip install 'pythran>=0.19,<0.20'")
    build = tmp_path_factory.mktemp("aarch64")
    configure = [find("cmake"), "-S", str(ROOT), "-B", str(build), "-DSEEDDELTA_BUILD_KERNEL_TEST=ON"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += (
        ["-G", "Ninja"] if shutil.which("ninja") else ["-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={find('make')}"]
    )
    runner = []
    if not ON_ARM:
        compiler = find("aarch64-linux-gnu-g++")
        runner = [find("qemu-aarch64", "qemu-aarch64-static")]
        configure += [
            "-DCMAKE_SYSTEM_NAME=Linux",
            "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
            f"-DCMAKE_CXX_COMPILER={compiler}",
        ]
        configure += ["-DCMAKE_EXE_LINKER_FLAGS=-static"]  # needs no libraries of the other machine at run time
    for command in (configure, [configure[0], "--build", str(build), "--target", "kernel_test", "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [*runner, str(build / "kernel_test")]


def run(command: list[str], rounds: int, *names: str) -> str:
    done = subprocess.run([*command, str(rounds), "1", *names], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_cpu(command: list[str], cpu: str) -> list[str]:
    if ON_ARM:
        pytest.skip("this machine runs the kernels itself; only an emulator can take another CPU")
    return [command[0], "-cpu", cpu, *command[1:]]


def test_baseline_cpu_has_no_dot_product(kernel_test):
    """A Cortex-A72 lacks the extension: an instruction of it in the wrong unit would end the program.

    With it are compared numbers of threads, which take an emulator most of its time; what kernels compute is compared
    in more rounds on the other CPU.
    """
    out = run(with_cpu(kernel_test, "cortex-a72"), 15, "neon")
    assert out.splitlines()[0].split() == ["scalar", "neon"]
    assert "0 failures" in out


def test_cpu_with_dot_product(kernel_test):
    if ON_ARM:
        out = run(kernel_test, 120, "neon")
    else:
        out = run(with_cpu(kernel_test, "max"), 120, "neon", "no-threads")
        assert out.splitlines()[0].split() == ["scalar", "neon", "neon_dotprod"]
    assert "0 failures" in out


def test_a_missing_instruction_set_is_a_failure(kernel_test):
    done = subprocess.run([*kernel_test, "1", "1", "avx2"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "avx2 is not available" in done.stdout
