"""The probe ends with computing: a release that lays out or computes a node otherwise is refused before it is used."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from seeddelta import _core  # noqa: E402
from seeddelta.errors import UnsupportedLlamaError  # noqa: E402
from seeddelta.runtime import library, selftest  # noqa: E402
from seeddelta.runtime.attention import _check_computing  # noqa: E402


def test_every_form_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    library.ggml_abi()  # which computes, too, the first time
    computed = []
    original = selftest._difference

    def difference(ours: Any, theirs: Any) -> str | None:
        computed.append(float(np.abs(theirs).max()))
        assert not np.array_equal(ours, theirs[::-1])
        return original(ours, theirs)

    monkeypatch.setattr(selftest, "_difference", difference)
    library.examine()
    assert len(computed) == 4
    _check_computing.__wrapped__()
    assert len(computed) == 5
    assert min(computed) > 0


def test_it_takes_little_time() -> None:
    library.examine()
    _check_computing()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        library.examine()
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.05


@pytest.mark.parametrize("form", ["product, rows", "product, columns", "experts, experts", "look-up, rows"])
def test_another_result_is_refused(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """As if ggml had begun to add something to what we think that the node is."""
    calls = []
    original = selftest._difference

    def difference(ours: Any, theirs: Any) -> str | None:
        calls.append(None)
        wanted = ["product, rows", "product, columns", "experts, experts", "look-up, rows"].index(form)
        return original(ours, theirs + (len(calls) - 1 == wanted))

    monkeypatch.setattr(selftest, "_difference", difference)
    with pytest.raises(UnsupportedLlamaError, match=rf"a rewritten node \({form}\) is not computed"):
        library.examine()


def test_nan_is_another_result() -> None:
    assert selftest._difference(np.array([np.nan], np.float32), np.ones(1, np.float32)) is not None


def test_a_parameter_that_ggml_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml_mul_mat writes something that the probe did not see: no node is rewritten."""
    original = selftest._Graph.op
    at = library.ggml_abi().layout()["op_params"]

    def op(self: Any, name: str, *arguments: Any) -> int:
        node = original(self, name, *arguments)
        if name == "mul_mat":
            ctypes.c_int32.from_address(node + at + 20).value = 1
        return node

    monkeypatch.setattr(selftest._Graph, "op", op)
    with pytest.raises(UnsupportedLlamaError, match="parameters that are not known"):
        library.examine()


LOAD = """
import sys, llama_cpp, seeddelta
from seeddelta.errors import UnsupportedLlamaError
assert llama_cpp.llama_cpp._lib._name.startswith(sys.argv[2]), llama_cpp.llama_cpp._lib._name
try:
    llm = seeddelta.load(sys.argv[1], n_ctx=64, verbose=False)
except UnsupportedLlamaError as error:
    print("refused:", error)
else:
    llm.eval(llm.tokenize(b"a harbour"))
    print("served")
"""
DOES_NOTHING = {"x86_64": b"\xc3", "AMD64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6"}  # the instruction ret


@pytest.mark.skipif(platform.machine() not in DOES_NOTHING or sys.platform != "linux", reason="patches an ELF library")
def test_a_library_that_leaves_our_nodes_out(tmp_path: Path, short_two_layers: Path) -> None:
    """The real libraries, of which one no longer calls the function of a custom node: refused at load."""
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
    assert "a rewritten node (product, rows) is not computed as it should be" in run.stdout


def test_an_untested_release_is_tried_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "__version__", "9.9.9")
    monkeypatch.setattr(library, "_TRIAL", "import os; os.abort()")
    with pytest.raises(UnsupportedLlamaError, match=r"9\.9\.9 cannot .* a trial of it ended with signal 6"):
        library.ggml_abi.__wrapped__()
    monkeypatch.setattr(library, "_TRIAL", "import sys; sys.exit('no such field')")
    with pytest.raises(UnsupportedLlamaError, match="status 1: no such field"):
        library.ggml_abi.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(llama_cpp, "__version__", "9.9.9")
    assert isinstance(library.ggml_abi.__wrapped__(), _core.GgmlAbi)
