"""use_mlock locks what a model has in memory, and no placeholders."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import seeddelta
from llama_helpers import load_small, logits_of, tokens_of
from seeddelta.errors import ConfigError, OutOfMemoryError
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.runtime import RuntimeConfig
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

PAGE = 4096


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "tiny-lock.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def ours(dense: Path, model_dir: Path) -> Path:
    path = model_dir / "tiny-lock.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=4), progress=False)
    return path


def locked() -> int:
    """Bytes that this process has locked."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmLck:"))


def test_what_is_there_is_locked(ours: Path) -> None:
    with open_seeddelta(ours) as file:
        payload = sum(tensor.payload_bytes for tensor in file.tensors.values())
        kept = sum(file.header.tensors[name].nbytes for name in file.dense_tensors)
    before = locked()
    try:
        llm = load_small(ours, use_mlock=True)
    except OutOfMemoryError as error:
        pytest.skip(str(error))
    count = llm.seeddelta.locked_bytes
    assert locked() - before == count == llm.seeddelta.metrics()["seeddelta.locked_bytes"]
    header = Path(ours).stat().st_size - payload - kept  # the stub file has it, too, and pages are whole
    assert payload + kept <= count <= payload + kept + header + 4 * PAGE
    assert len(logits_of(llm, tokens_of(llm, 8))) == 8
    again = pickle.loads(pickle.dumps(llm))
    assert again.seeddelta.locked_bytes == count
    again.close()
    llm.close()
    del llm, again
    assert locked() == before


def test_plain_load_locks_nothing(ours: Path) -> None:
    before = locked()
    llm = load_small(ours)
    assert (locked() - before, llm.seeddelta.locked_bytes) == (0, 0)
    llm.close()


def test_a_limit_is_told(ours: Path) -> None:
    script = textwrap.dedent(
        """
        import ctypes, resource, sys, seeddelta
        from seeddelta.errors import OutOfMemoryError
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
        # root may lock whatever the limit says: without its capabilities it may not
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(header, none) == 0
        try:
            seeddelta.load(sys.argv[1], n_ctx=32, use_mlock=True, verbose=False)
        except OutOfMemoryError as error:
            print(error)
        """
    )
    found = subprocess.run([sys.executable, "-c", script, str(ours)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "use_mlock" in found.stdout
    assert "may lock at most" in found.stdout
    assert "ulimit -l" in found.stdout


def test_columns_are_not_locked(dense: Path) -> None:
    with pytest.raises(ConfigError, match="use_mlock"):
        load_small(dense, use_mlock=True, config=RuntimeConfig(columns="f16"))
