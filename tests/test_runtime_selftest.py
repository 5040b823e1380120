"""The probe ends with computing: a release that lays out or computes a node otherwise is refused before it is used."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import seeddelta

llama_cpp = pytest.importorskip("llama_cpp")

from native_helpers import tell  # noqa: E402
from seeddelta import _core  # noqa: E402
from seeddelta.errors import UnsupportedLlamaError  # noqa: E402
from seeddelta.runtime import library  # noqa: E402
from seeddelta.runtime.attention import own_attention  # noqa: E402

SHIM = Path(__file__).parent / "faults" / "native_library.c"
POINTER = ctypes.c_void_p
# Forms of nodes, what makes them, its arguments. The first of two nodes is of a named weight, and ours.
FORMS = {
    "product, rows": ("ggml_mul_mat", 3), "product, columns": ("ggml_mul_mat", 3),
    "experts, experts": ("ggml_mul_mat_id", 4), "look-up, rows": ("ggml_get_rows", 3),
}  # fmt: skip


def with_other(function: str, arguments: int, change: Callable[[str, int, int], None]) -> dict[str, int]:
    """The functions of ggml, of which one makes its node and calls `change` with the name and the address of the
    weight, and the node. ggml's own node of a weight has `-` before its name."""
    symbols = library.ggml_symbols()
    real = ctypes.CFUNCTYPE(POINTER, *[POINTER] * arguments)(symbols[function])
    name_of = ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)(symbols["ggml_get_name"])
    seen = []

    def make(*given: int) -> int:
        node, name = int(real(*given)), name_of(given[1]).decode()
        change(name or f"-{seen[-1] if seen else ''}", given[1], node)
        seen.append(name)
        return node

    fake = ctypes.CFUNCTYPE(POINTER, *[POINTER] * arguments)(make)
    _KEPT.append(fake)
    return symbols | {function: ctypes.cast(fake, POINTER).value or 0}


_KEPT: list[Any] = []  # what C calls


def test_every_form_is_computed() -> None:
    """Four of them, and attention when it is first asked for."""
    ggml = library.probe()
    assert ggml.self_tests == 4
    for _ in range(2):
        _core.OwnAttention(ggml, _core.Options())
        assert ggml.self_tests == 5
    own_attention(_core.Options())
    assert library.loaded_ggml().self_tests == 5


def test_a_model_tells_of_it(short_two_layers: Path) -> None:
    llm = seeddelta.load(short_two_layers, n_ctx=64, verbose=False)
    assert llm.seeddelta.metrics()["seeddelta.self_tests"] == 5
    llm.close()


def test_it_takes_little_time() -> None:
    library.probe()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        library.probe()
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.05


@pytest.mark.parametrize("value", [9.0, float("nan")])
@pytest.mark.parametrize("form", FORMS)
def test_another_result_is_refused(form: str, value: float) -> None:
    """As if ggml had begun to compute something else than what we think that the node is."""
    function, arguments = FORMS[form]
    data_of = ctypes.CFUNCTYPE(POINTER, POINTER)(library.ggml_symbols()["ggml_get_data"])

    def change(name: str, weight: int, node: int) -> None:
        if name == f"-{form.split(', ')[1]}":
            (ctypes.c_float * 64).from_address(data_of(weight))[:] = [value] * 64

    with pytest.raises(UnsupportedLlamaError, match=rf"a rewritten node \({form}\) is not computed"):
        library.probe(with_other(function, arguments, change))


def test_another_attention_is_refused() -> None:
    """The second node, ggml's own, has a scale of another meaning."""
    symbols = library.ggml_symbols()
    types = (POINTER, *[POINTER] * 5, *[ctypes.c_float] * 3)
    real = ctypes.CFUNCTYPE(*types)(symbols["ggml_flash_attn_ext"])
    scales = []

    def make(*given: Any) -> int:
        scale = 2 * given[5] if scales.count(given[5]) and given[5] == pytest.approx(32**-0.5) else given[5]
        scales.append(given[5])
        return int(real(*given[:5], scale, *given[6:]))

    fake = ctypes.CFUNCTYPE(*types)(make)
    ggml = library.probe(symbols | {"ggml_flash_attn_ext": ctypes.cast(fake, POINTER).value or 0})
    with pytest.raises(RuntimeError, match="attention is not computed as it should be"):
        _core.OwnAttention(ggml, _core.Options())


def test_a_parameter_that_ggml_adds() -> None:
    """ggml_mul_mat writes something that the probe did not see: no node is rewritten."""
    at = library.loaded_ggml().layout()["op_params"]

    def change(name: str, weight: int, node: int) -> None:
        if name == "rows":
            ctypes.c_int32.from_address(node + at + 20).value = 1

    with pytest.raises(UnsupportedLlamaError, match="parameters that are not known"):
        library.probe(with_other("ggml_mul_mat", 3, change))


def test_the_preloaded_library_refuses_it_too(short_two_layers: Path, tmp_path: Path) -> None:
    """A ggml that computes nothing: no model of ours is loaded, and one line says why."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (apt install gcc)")
    shim = tmp_path / "other.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-DCOMPUTES_NOTHING", SHIM, "-ldl", "-o", shim], check=True)
    jobs = [{"load": "m", "path": short_two_layers}]
    told = tell(jobs, tmp_path, behind=(shim,))
    assert (told.code, told.results) == (0, [False]), told.stderr[-2000:]
    (line,) = told.lines
    assert line.startswith("seeddelta: error: this llama.cpp cannot run SeedΔ models: a rewritten node (product, rows)")
    assert tell(jobs, tmp_path).results == [True]


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
        library.loaded_ggml.__wrapped__()
    monkeypatch.setattr(library, "_TRIAL", "import sys; sys.exit('no such field')")
    with pytest.raises(UnsupportedLlamaError, match="status 1: no such field"):
        library.loaded_ggml.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(llama_cpp, "__version__", "9.9.9")
    assert library.loaded_ggml.__wrapped__().self_tests == 4
