"""The C API: cpp/example/model.c, compiled as a program of one's own has it, says what Python says, linked before
llama.cpp's libraries, behind them, and in a program that loads our library while it runs."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from native_helpers import BATCHES, library, of_both_kinds, python_logits
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.inspection.summary import summarize
from tiny_llama import N_LAYERS

llama_cpp = pytest.importorskip("llama_cpp")

from seeddelta.runtime.contexts import evaluation_callback  # noqa: E402

ROOT = Path(__file__).parents[1]
LLAMA = Path(llama_cpp.__file__).parent / "lib"
HEADERS = LLAMA.parents[1] / "include"
LIBRARIES = ("-lllama", "-lggml", "-lggml-base")
TEXT, COUNT = "The capital of France is", 16


@pytest.fixture(scope="module")
def models(smollm2_quantized: Path, model_dir: Path) -> dict[str, Path]:
    return of_both_kinds(model_dir / "c-api", smollm2_quantized)


def compiled(folder: Path, source: Path, *libraries: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not (HEADERS / "llama.h").exists():
        pytest.skip("no C compiler (apt install gcc), or llama-cpp-python without headers")
    path, ours = folder / f"program{len(list(folder.iterdir()))}", library().parent
    command = [
        compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", f"-I{ROOT / 'cpp/include'}", source,
        f"-L{ours}", f"-L{LLAMA}", *libraries, "-ldl", f"-Wl,-rpath,{ours}:{LLAMA}", "-o", path,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return path


def run(program: Path, model: Path, **variables: str) -> tuple[bytes, str, dict[str, Any]]:
    """What a program says, how it is attached, and its counters."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDDELTA_")}
    done = subprocess.run(
        [program, model, TEXT, str(COUNT)], capture_output=True, env=environment | variables, timeout=300, check=False
    )
    first, _, metrics = done.stderr.decode().partition("\n")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, first, json.loads(metrics)


def by_python(path: Path, **options: Any) -> bytes:
    llm = seeddelta.load(path, n_ctx=512, flash_attn=True, verbose=False, **options)
    tokens, said = llm.tokenize(TEXT.encode()), b""
    for _ in range(COUNT):
        llm.eval(tokens)
        tokens = [llm.sample(temp=0)]
        if tokens[0] == llm.token_eos():
            break
        said += llm.detokenize(tokens)
    llm.close()
    return said


ORDERS = {"automatic": ("-lseeddelta_llama", *LIBRARIES), "attached": (*LIBRARIES, "-lseeddelta_llama")}


@pytest.mark.parametrize("how", ORDERS)
def test_the_text_is_that_of_python(how: str, models: dict[str, Path], tmp_path: Path) -> None:
    program = compiled(tmp_path, ROOT / "cpp/example/model.c", *ORDERS[how])
    model = models["seeddelta"]
    said, first, metrics = run(program, model)
    assert first.startswith(f"{how}, {7 * N_LAYERS + 1} tensors at ")
    assert float(first.split(" at ")[1].split()[0]) == pytest.approx(bits_per_weight(model), abs=0.005)
    found = metrics[str(model)]
    assert found["seeddelta.calls"] > 7 * N_LAYERS
    assert found["seeddelta.self_tests"] == 5
    assert found["attention.nodes"] > 0
    assert said == by_python(model) != b""
    assert said != run(program, model, SEEDDELTA_SET=f"fallback={models['ordinary']} dense=*")[0]


def bits_per_weight(path: Path) -> float:
    with open_seeddelta(path) as file:
        return float(summarize(file)["bits_per_weight"])


class Loaded:
    """The library, loaded while the program runs."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(str(library()))
        for name in ("open", "attach"):
            getattr(self.c, f"seeddelta_{name}").restype = ctypes.c_void_p
        for name in ("stub_path", "last_error"):
            getattr(self.c, f"seeddelta_{name}").restype = ctypes.c_char_p
        for name in ("attach", "stub_path", "loaded", "check", "detach", "free"):
            getattr(self.c, f"seeddelta_{name}").argtypes = [ctypes.c_void_p]
        self.c.seeddelta_automatic.restype = ctypes.c_bool
        self.callback = ctypes.cast(self.c.seeddelta_eval, ctypes.c_void_p).value or 0
        self.user_data = 0  # of the context that is made next

    def open(self, path: Path | None, settings: str | None = None) -> int | None:
        texts = (None if text is None else str(text).encode() for text in (path, settings))
        return self.c.seeddelta_open(*texts)  # type: ignore[no-any-return]

    def error(self) -> str:
        return str(self.c.seeddelta_last_error().decode())


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded()


def load_stub(loaded: Loaded, model: int) -> Any:
    path = loaded.c.seeddelta_stub_path(model).decode()
    settings = {"n_ctx": 128, "n_batch": 128, "n_threads": 2, "n_threads_batch": 2, "logits_all": True}
    with evaluation_callback(loaded):
        llm = llama_cpp.Llama(path, flash_attn=True, verbose=False, **settings)
    assert loaded.c.seeddelta_loaded(model) == 0, loaded.error()
    return llm


def test_a_program_that_loads_it_while_it_runs(models: dict[str, Path], loaded: Loaded) -> None:
    assert not loaded.c.seeddelta_automatic()
    for settings, config in (("", None), ("attention=llama", seeddelta.RuntimeConfig(attention="llama"))):
        model = loaded.open(models["seeddelta"], settings)
        assert model is not None, loaded.error()
        loaded.user_data = loaded.c.seeddelta_attach(model)
        assert loaded.user_data, loaded.error()
        llm = load_stub(loaded, model)
        for batch in BATCHES:
            llm.eval(batch)
            assert loaded.c.seeddelta_check(loaded.user_data) == 0, loaded.error()
        np.testing.assert_array_equal(
            llm.scores[: sum(map(len, BATCHES))], python_logits(models["seeddelta"], config=config)
        )
        llm.close()
        loaded.c.seeddelta_detach(loaded.user_data)
        loaded.c.seeddelta_free(model)


def test_results_that_do_not_count(models: dict[str, Path], loaded: Loaded, tmp_path: Path) -> None:
    path = Path(shutil.copy(models["seeddelta"], tmp_path / "m.gguf"))
    model = loaded.open(path)
    assert model is not None, loaded.error()
    assert loaded.c.seeddelta_loaded(model) != 0
    assert loaded.error() == f"{path}: seeddelta_stub_path was not asked for"
    loaded.user_data = loaded.c.seeddelta_attach(model)
    assert loaded.c.seeddelta_check(loaded.user_data) != 0
    assert loaded.error() == f"{path}: no graph was shown to seeddelta_eval; give it to the context as cb_eval"
    llm = load_stub(loaded, model)
    os.truncate(path, path.stat().st_size // 2)
    with suppress(RuntimeError):  # llama.cpp may stop there
        llm.eval(BATCHES[0])
    assert loaded.c.seeddelta_check(loaded.user_data) != 0
    assert loaded.error() == f"{path}: was changed or truncated while the model was in use; load it again"
    llm.close()
    loaded.c.seeddelta_detach(loaded.user_data)
    loaded.c.seeddelta_free(model)


def test_what_cannot_be_opened(models: dict[str, Path], loaded: Loaded, tmp_path: Path) -> None:
    wrong = {
        "is no SeedΔ file; give it to llama.cpp itself": (models["ordinary"], None),
        "the path is NULL": (None, None),
        "settings: gap=much: write a number": (models["seeddelta"], "gap=much"),
        "above the gap 0, and must be computed densely": (models["seeddelta"], "gap=0"),
    }
    for words, (path, settings) in wrong.items():
        assert loaded.open(path, settings) is None
        assert words in loaded.error()
    assert loaded.open(tmp_path / "none.gguf") is None
    assert loaded.error().startswith(f"{tmp_path}/none.gguf: ")


def test_every_function_of_the_header_is_exported(loaded: Loaded) -> None:
    names = re.findall(r"\b(seeddelta_\w+)\(", (ROOT / "cpp/include/seeddelta/model.h").read_text())
    assert len(set(names)) > 11
    for name in names:
        assert hasattr(loaded.c, name)
