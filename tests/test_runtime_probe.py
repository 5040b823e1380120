"""The probe learns the layout of the loaded ggml, and names what is wrong with one that behaves otherwise."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from seeddelta import _core  # noqa: E402
from seeddelta.errors import UnsupportedLlamaError  # noqa: E402
from seeddelta.runtime import library  # noqa: E402


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def test_layout() -> None:
    layout = library.loaded_ggml().layout()
    assert layout["type"] == 0  # has been the first field of ggml_tensor for ever
    offsets = [layout[field] for field in ("type", "ne", "nb", "op", "op_params", "src", "data", "name")]
    assert len(set(offsets)) == len(offsets)
    assert layout["op_mul_mat"] != layout["op_custom"]


def test_every_symbol_is_exported() -> None:
    assert set(library.ggml_symbols()) >= set(_core.ggml_required_symbols())


@pytest.mark.parametrize("name", _core.ggml_required_symbols())
def test_missing_symbol(name: str) -> None:
    symbols = library.ggml_symbols()
    del symbols[name]
    with pytest.raises(UnsupportedLlamaError, match=f"{llama_cpp.__version__}.*{name} is missing.*pip install"):
        library.probe(symbols)


NOP, F31 = ctypes.create_string_buffer(b"NOP"), ctypes.create_string_buffer(b"f31")
text_of_number = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
size_of_nothing = ctypes.CFUNCTYPE(ctypes.c_size_t)
size_of_object = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)
size_of_number = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
number_of_object = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
pointer_of_object = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@pytest.mark.parametrize(
    ("name", "fake", "message"),
    [
        ("ggml_op_name", text_of_number(lambda op: ctypes.addressof(NOP)), "ggml_op_name does not know"),
        ("ggml_type_name", text_of_number(lambda kind: ctypes.addressof(F31)), "ggml type 0 is not f32"),
        ("ggml_type_size", size_of_number(lambda kind: 3), "ggml type 0 is not f32"),
        ("ggml_tensor_overhead", size_of_nothing(lambda: 7), "ggml_tensor_overhead"),
        ("ggml_tensor_overhead", size_of_nothing(lambda: 1 << 40), "ggml_tensor_overhead"),
        ("ggml_get_mem_size", size_of_object(lambda context: 0), "ggml_init does not take its parameters"),
        ("ggml_get_data", pointer_of_object(lambda tensor: 0x1234567), "field 'data'"),
        ("ggml_get_name", pointer_of_object(lambda tensor: 64), "field 'name'"),
        ("ggml_init", pointer_of_object(lambda params: None), "ggml_init returned NULL"),
        ("ggml_backend_dev_type", number_of_object(lambda device: 3), "accelerator CPU takes the prompts away"),
    ],
)
def test_unexpected_behavior(name: str, fake: Callable[..., Any], message: str) -> None:
    with pytest.raises(UnsupportedLlamaError, match=message):
        library.probe(library.ggml_symbols() | {name: address(fake)})


FOREIGN = """
import ctypes
from seeddelta import _core
from seeddelta.runtime import library

pointer, number = ctypes.c_void_p, ctypes.c_int64
custom = (pointer, ctypes.c_int, *[number] * 4, pointer, ctypes.c_int, pointer, ctypes.c_int, pointer)
make = ctypes.CFUNCTYPE(pointer, *custom)
symbols = library.ggml_symbols()
real = make(symbols["ggml_custom_4d"])

def userdata_first(*arguments):
    node = real(*arguments)
    whole = ctypes.string_at(node, 256)
    at = whole.index(arguments[8].to_bytes(8, "little"))
    function_and_tasks, userdata = whole[at : at + 12], whole[at + 16 : at + 24]
    assert userdata == (arguments[10] or 0).to_bytes(8, "little")
    ctypes.memmove(node + at, userdata + function_and_tasks + bytes(4), 24)  # what filled the gap was never set
    return node

fake = make(userdata_first)
del symbols["ggml_graph_compute_with_ctx"]  # which would not understand such nodes
ggml = library.probe(symbols | {"ggml_custom_4d": ctypes.cast(fake, pointer).value})
assert ggml.self_tests == 0
hook = _core.GraphHook(_core.WeightRegistry(ggml))

class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool))

context = ctypes.CFUNCTYPE(pointer, InitParams)(symbols["ggml_init"])(InitParams(1 << 16, None, False))
tensor = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_int, *[number] * 4)(symbols["ggml_new_tensor_4d"])
sources = (pointer * 1)(tensor(context, 0, 4, 1, 1, 1))
node = userdata_first(context, 0, 4, 1, 1, 1, ctypes.addressof(sources), 1, ctypes.cast(fake, pointer).value, 1, 0x10)
before = ctypes.string_at(node, 256)
ctypes.CFUNCTYPE(ctypes.c_bool, pointer, ctypes.c_bool, pointer)(hook.callback)(node, True, hook.user_data)
assert hook.take_error() is None
assert ctypes.string_at(node, 256) == before
print("left alone")
"""


def test_a_custom_node_of_others_where_userdata_comes_first() -> None:
    """What tells our nodes from others must not be only what lies before the userdata: here that is nothing."""
    run = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "left alone", (run.returncode, run.stderr)


def test_unexpected_type_traits() -> None:
    symbols = library.ggml_symbols()
    with pytest.raises(UnsupportedLlamaError, match="to_float"):
        library.probe(symbols | {"ggml_fp16_to_fp32_row": symbols["ggml_bf16_to_fp32_row"]})


@pytest.mark.parametrize("version", ["0.3.9", "0.3.15", "0.2.90"])
def test_older_release_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(llama_cpp, "__version__", version)
    message = rf"llama-cpp-python {version} cannot .* older than 0\.3\.16.*0\.3\.36: pip install"
    with pytest.raises(UnsupportedLlamaError, match=message):
        library.loaded_ggml.__wrapped__()


@pytest.mark.parametrize("version", ["0.3.16", "0.3.36+cpu", "0.4.0", "1.0"])
def test_newer_release_is_tried(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(llama_cpp, "__version__", version)
    library.loaded_ggml.__wrapped__()


def test_the_tested_releases_are_named_alike() -> None:
    root = Path(__file__).parents[1]
    sessions, project, manual = (
        (root / name).read_text() for name in ("noxfile.py", "pyproject.toml", "docs/internals/runtime.md")
    )
    releases = re.search(r"^LLAMA_RELEASES = \((.*?)\)", sessions, re.MULTILINE)
    assert releases is not None
    assert tuple(re.findall(r'"([0-9.]+)"', releases[1]))[::-1] == library.TESTED_VERSIONS
    assert f'"llama-cpp-python>={library.TESTED_VERSIONS[0]}"' in project
    assert tuple(re.findall(r"^\| (0\.[0-9.]+) .*\| \d+ pass", manual, re.MULTILINE))[::-1] == library.TESTED_VERSIONS


def test_types_that_a_release_lacks_are_not_asked_for() -> None:
    """Older releases end at type 30 or 40; behind the last one ggml reads what is not a type."""
    symbols, asked = library.ggml_symbols(), []
    real = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int)(symbols["ggml_blck_size"])

    def block_size(number: int) -> int:
        asked.append(number)
        return int(real(number))

    fake = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int)(block_size)
    for name in ("dequantize_row_q1_0", "dequantize_row_q2_0"):
        symbols.pop(name, None)
    abi = library.probe(symbols | {"ggml_blck_size": address(fake)})
    amx = "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()  # there Q4_1 is repacked
    assert abi.placeholder_type(128) == abi.placeholder_type(32) == (1 if amx else 3)
    assert abi.placeholder_type(33) == 1
    assert not {41, 42} & set(asked)
    whole = library.probe(library.ggml_symbols())
    known = library.ggml_symbols().keys()
    assert whole.placeholder_type(64) == (42 if "dequantize_row_q2_0" in known else abi.placeholder_type(64))


def test_library_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.llama_cpp, "_lib", None)
    with pytest.raises(UnsupportedLlamaError, match="shared library"):
        library.ggml_symbols()
