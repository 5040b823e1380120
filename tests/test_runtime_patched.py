"""The real libraries of llama.cpp, one of them changed: what it computes otherwise is never given to anybody."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from seeddelta.runtime import library  # noqa: E402

LOAD = """
import sys, llama_cpp, seeddelta
from seeddelta.errors import UnsupportedLlamaError
assert llama_cpp.llama_cpp._lib._name.startswith(sys.argv[2]), llama_cpp.llama_cpp._lib._name
llm = seeddelta.load(sys.argv[1], n_ctx=64, verbose=False)
try:
    llm.eval(llm.tokenize(b"a harbour"))
except UnsupportedLlamaError as error:
    print("refused:", error)
"""
DOES_NOTHING = {"x86_64": b"\xc3", "AMD64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6"}  # the instruction ret


@pytest.mark.skipif(platform.machine() not in DOES_NOTHING or sys.platform != "linux", reason="patches an ELF library")
def test_a_library_that_leaves_our_nodes_out(tmp_path: Path, short_two_layers: Path) -> None:
    """The real libraries, of which one no longer calls the function of a custom node: refused at the first decode."""
    folder = tmp_path / "lib"
    shutil.copytree(Path(llama_cpp.llama_cpp._lib._name).parent, folder)
    function = ctypes.cast(library.native_library().ggml_compute_forward_custom, ctypes.c_void_p).value or 0
    code, patched = ctypes.string_at(function, 48), 0
    for file in folder.glob("libggml-cpu.so*"):
        data = file.read_bytes()
        assert data.count(code) == 1
        file.write_bytes(data.replace(code, DOES_NOTHING[platform.machine()].ljust(4, b"\x90") + code[4:]))
        patched += 1
    assert patched
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": str(folder)}
    command = [sys.executable, "-c", LOAD, str(short_two_layers), str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("refused: "), (run.stdout, run.stderr)
    assert "did not run the operations" in run.stdout
