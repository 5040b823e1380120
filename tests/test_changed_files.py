"""The file of a model while it is loaded: replaced, made shorter, written over. Right numbers, or none."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta import _core
from seeddelta.errors import ChangedFileError

pytest.importorskip("llama_cpp")

from llama_helpers import load_small, logits_of
from seeddelta.runtime.library import loaded_ggml
from tiny_llama import write_llama

TOKENS = list(range(5, 25))
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced there")


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("changed") / "dense.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def built(dense: Path) -> Path:
    path = dense.parent / "tiny.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4), progress=False)
    return path


@pytest.fixture
def tiny(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(built, tmp_path / "model.gguf"))


def child(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that has `load(path)`, `decode(llm)` (the last logits) and `expect(llm)` (the error's text)."""
    program = f"""
        import os, sys, threading, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np
        import seeddelta
        from llama_cpp import llama_cpp as native
        from llama_helpers import load_small, logits_of
        from seeddelta.errors import ChangedFileError

        def load(path, **options):
            return load_small(path, 2, **options)

        def decode(llm):
            return logits_of(llm, {TOKENS})[-1]

        def expect(llm):
            for read in (lambda: decode(llm), lambda: native.llama_get_logits(llm._ctx.ctx), lambda: decode(llm)):
                try:
                    read()
                except ChangedFileError as error:
                    message = str(error)
                else:
                    sys.exit("there are numbers")
            print(message)

        path = sys.argv[1]
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program) + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_pages_that_are_gone_are_zeros(tiny: Path) -> None:
    model = _core.ServedModel(tiny, loaded_ggml(), _core.Options())
    places = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at)) for at, size in model.payload]
    before = [place.copy() for place in places]
    assert model.changed == ""
    length = tiny.stat().st_size // 2
    os.truncate(tiny, length)
    assert model.changed == f"{tiny}: was changed or truncated while the model was in use; load it again"
    gone = 0
    for place, was in zip(places, before, strict=True):  # SIGBUS without the guard
        assert ((place == was) | (place == 0)).all()
        gone += int((place != was).sum())
    assert gone > 1000


def test_a_new_file_moved_over_it(tiny: Path, built: Path, dense: Path, tmp_path: Path) -> None:
    llm = load_small(tiny, 1)
    expected = logits_of(llm, TOKENS)
    other = tmp_path / "other.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=other, bits=2), progress=False)
    os.replace(other, tiny)
    np.testing.assert_array_equal(logits_of(llm, TOKENS), expected)
    assert not np.array_equal(logits_of(load_small(tiny, 1), TOKENS), expected)
    tiny.unlink()
    np.testing.assert_array_equal(logits_of(llm, TOKENS), expected)


@pytest.mark.parametrize("size", [0, 0.5])
def test_made_shorter(tiny: Path, size: float) -> None:
    length = int(size * tiny.stat().st_size)
    done = child(f"llm = load(path); decode(llm); os.truncate(path, {length}); expect(llm)", tiny)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tiny}: was changed or truncated while the model was in use; load it again\n"


def test_made_shorter_in_the_middle_of_a_decode(tiny: Path) -> None:
    done = child(
        """
        llm = load(path)
        right = decode(llm)
        threading.Timer(0.2, os.truncate, (path, 4096)).start()
        try:
            while True:
                assert np.array_equal(decode(llm), right), "wrong numbers"
        except ChangedFileError:
            expect(llm)
        """,
        tiny,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tiny}: was changed or truncated")


def test_written_over_in_place(tiny: Path, built: Path) -> None:
    """The size is the same, and no page is gone; another file as long would do the same."""
    done = child(
        """
        llm = load(path)
        decode(llm)
        data = bytearray(open(path, "rb").read())
        data[-3000] ^= 1
        with open(path, "r+b") as file:
            file.write(data)
        expect(llm)
        assert np.isfinite(decode(load(sys.argv[2]))).all()  # another model
        """,
        tiny, built,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_fallback_made_shorter(tiny: Path, dense: Path, tmp_path: Path) -> None:
    fallback = shutil.copy(dense, tmp_path / "fallback.gguf")
    done = child(
        "llm = load(path, fallback=sys.argv[2]); decode(llm); os.truncate(sys.argv[2], 100); expect(llm)",
        tiny, fallback,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{fallback}: was changed")


FOREIGN = """
    import mmap
    with open(sys.argv[2], "r+b") as file:
        other = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.truncate(0)
    other[0]
"""


@pytest.mark.parametrize("before", ["", "import faulthandler; faulthandler.enable();"])
@pytest.mark.parametrize("after", ["", "import faulthandler; faulthandler.enable(); llm = load(path);"])
def test_a_page_of_somebody_else(tiny: Path, tmp_path: Path, before: str, after: str) -> None:
    """What handled the signal before does so still; without anything the process ends as ever."""
    other = tmp_path / "other"
    other.write_bytes(bytes(8192))
    done = child(f"{before}\nllm = load(path); decode(llm)\n{after}\n" + textwrap.dedent(FOREIGN), tiny, other)
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(before or after)


def test_a_signal_that_is_sent(tiny: Path) -> None:
    done = child("llm = load(path); import signal; os.kill(os.getpid(), signal.SIGBUS); time.sleep(5)", tiny)
    assert done.returncode == -signal.SIGBUS


def test_a_file_that_is_cut_while_it_is_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seal(self: Any) -> bool:
        sealed = bool(original(self))
        os.truncate(tiny, 0)
        return sealed

    original = _core.StubFile.seal
    monkeypatch.setattr(_core.StubFile, "seal", seal)
    with pytest.raises(ChangedFileError, match="was changed or truncated"):
        load_small(tiny, 1)
