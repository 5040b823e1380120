"""Builds of llama.cpp for other hardware than the CPU, by devices that a process adds to the loaded library."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import seeddelta

pytest.importorskip("llama_cpp")

from llama_helpers import load_small, logits_of
from tiny_llama import write_llama

TOKENS = list(range(5, 25))
GPU, ACCEL = 1, 3  # ggml_backend_dev_type

# A device as the backend of a GPU or of BLAS registers it (ggml-backend-impl.h); it counts how often llama.cpp wants
# something computed, and refuses.
PROGRAM = """
    import ctypes, sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    from llama_cpp import llama_cpp as native
    from seeddelta.errors import UnsupportedLlamaError
    from seeddelta.runtime.library import native_library
    from llama_helpers import load_small, logits_of

    word, pointer, asked = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p), ctypes.c_void_p, []

    class Device(ctypes.Structure):
        _fields_ = [(f"function{{i}}", pointer) for i in range(16)] + [("reg", pointer), ("context", pointer)]

    class Registration(ctypes.Structure):
        _fields_ = [("version", ctypes.c_int), *((name, pointer) for name in ("name", "count", "get", "address"))]
        _fields_ += [("context", pointer)]

    name = ctypes.create_string_buffer(b"FAKE0")
    memory = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)

    def free_memory(device, free, total):
        for at in (free, total):
            ctypes.c_size_t.from_address(at).value = 1 << 33

    def refuse(*_):
        asked.append(1)
        return 0

    keep = [
        word(lambda device: ctypes.addressof(name)), word(lambda device: ctypes.addressof(name)), memory(free_memory),
        word(lambda device: {kind}), memory(lambda *_: None), *(word(refuse) for _ in range(10)),
    ]
    device, registration = Device(), Registration(version={version})
    for i, function in enumerate(keep):
        setattr(device, f"function{{i}}", ctypes.cast(function, pointer).value)
    more = [
        word(lambda reg: 1),
        ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_size_t)(lambda reg, i: ctypes.addressof(device)),
        ctypes.CFUNCTYPE(pointer, pointer, pointer)(lambda reg, name: None),
    ]
    registration.name = device.function0
    registration.count, registration.get, registration.address = (ctypes.cast(f, pointer).value for f in more)
    device.reg = ctypes.addressof(registration)
    native_library().ggml_backend_register(ctypes.byref(registration))
    path = sys.argv[1]
"""


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    dense = write_llama(folder / "dense.gguf", smollm2_quantized)
    seeddelta.build(seeddelta.Recipe(input=dense, output=folder / "tiny.gguf", bits=4), progress=False)
    return folder / "tiny.gguf"


def with_device(kind: int, code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process whose library has another device of this kind."""
    program = textwrap.dedent(PROGRAM).format(tests=str(Path(__file__).parent), kind=kind, version=2)
    return subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_build_for_gpus_computes_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    """Stock llama.cpp takes the GPU into every context, also without a layer on it, and ends with one that fails."""
    found = tmp_path / "logits.npy"
    code = f"llm = load_small(path, 1); np.save(sys.argv[2], logits_of(llm, {TOKENS})); assert not asked"
    done = with_device(GPU, code, tiny, found)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(found), logits_of(load_small(tiny, 1), TOKENS))
    code = "import llama_cpp; print('begins', flush=True); llama_cpp.Llama(path, n_gpu_layers=0, verbose=False)"
    stock = with_device(GPU, code, tiny.with_name("dense.gguf"))
    assert stock.stdout == "begins\n"
    assert stock.returncode != 0


def test_an_accelerator_is_refused_by_name(tiny: Path) -> None:
    """BLAS and the like take the products of prompts, whoever's they are."""
    code = "try: load_small(path)\nexcept UnsupportedLlamaError as error: print(error)"
    done = with_device(ACCEL, code, tiny)
    assert "its accelerator FAKE0 takes the prompts away from the CPU" in done.stdout, done.stderr
