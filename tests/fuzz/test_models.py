"""A short run of damaged models through llama.cpp."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType

pytest.importorskip("llama_cpp")

from models import MODEL_MEMORY, model_subject
from mutate import run
from seeddelta import _core
from seeddelta.errors import FormatError
from seeddelta.gguf.model_file import read_header
from subjects import TESTS, Subject


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path) -> Subject:
    return model_subject(smollm2_quantized)


def test_whole_models_are_loaded(model: Subject, tmp_path: Path) -> None:
    for number, data in enumerate(model.files):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        model.read(path)


def test_damaged_models(model: Subject) -> None:
    outcome = run([model], 120, seed=30, memory=MODEL_MEMORY)
    assert outcome.failures == []
    assert outcome.counts["model", "refused"] > 50
    assert outcome.counts["model", "read"] > 5


GOLDEN = sorted((TESTS / "golden").glob("*.gguf"))[0]


def raw(value: object) -> bytes:
    """A value of metadata as a file has it."""
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", GGUFValueType.ARRAY, GGUFValueType.UINT32, len(value)) + value.tobytes()
    if isinstance(value, str):
        return struct.pack("<IQ", GGUFValueType.STRING, len(value)) + value.encode()
    if isinstance(value, float):
        return struct.pack("<If", GGUFValueType.FLOAT32, value)
    return struct.pack("<II", GGUFValueType.UINT32, value)


def check(**values: object) -> None:
    """Look at a model with these values, by keys without the architecture (attention__x for attention.x)."""
    architecture = read_header(GOLDEN).metadata["general.architecture"]
    changed = {f"{architecture}.{key}".replace("__", "."): raw(value) for key, value in values.items()}
    stub = _core.StubFile(GOLDEN, {}, {}, changed)
    try:
        _core.check_loadable(stub.path)
    finally:
        stub.close()


@pytest.mark.parametrize("alignment", [1, 8, 16])
def test_alignments_that_llama_cpp_does_not_survive(alignment: int) -> None:
    stub = _core.StubFile(GOLDEN, {}, {}, {"general.alignment": raw(alignment)})
    for look in (_core.check_loadable, lambda path: _core.StubFile(path, {}, {})):
        with pytest.raises(FormatError, match=f"general.alignment must be a multiple of 32, and is {alignment}"):
            look(stub.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 513),
        ("block_count", np.array([], np.uint32)),
        ("expert_used_count", 1),
        ("expert_used_count", np.array([1, 0], np.uint32)),
        ("expert_group_count", 2),
        ("attention__layer_norm_rms_epsilon", -1e-5),
        ("attention__layer_norm_rms_epsilon", math.nan),
        ("attention__layer_norm_epsilon", "1"),
        ("rope__scaling__type", "other"),
    ],
)
def test_numbers_that_llama_cpp_does_not_survive(key: str, value: object) -> None:
    with pytest.raises(FormatError, match=key.replace("__", r"\.")):
        check(**{key: value})


def test_vectors_that_llama_cpp_does_not_survive() -> None:
    given = {"a.weight": (0, (4,), np.zeros(4, np.float32)), "b.weight": (1, (4, 4), np.zeros((4, 4), np.float16))}
    _core.StubFile(GOLDEN, {}, given).close()
    with pytest.raises(FormatError, match=r"'a\.weight' has one dimension and is F16"):
        _core.StubFile(GOLDEN, {}, {"a.weight": (1, (4,), np.zeros(4, np.float16))})


def test_what_a_stub_file_cannot_have() -> None:
    with pytest.raises(FormatError, match=r"'c\.weight' is not there"):
        _core.StubFile(GOLDEN, {"c.weight": "c.weight"}, {})
    for wrong in ((1, (4, 5), np.zeros((4, 4), np.float16)), (2, (4, 4), None), (99, (4, 4), None), (1, (), None)):
        with pytest.raises(ValueError, match=r"'a\.weight'"):
            _core.StubFile(GOLDEN, {}, {"a.weight": wrong})


def test_experts_in_groups() -> None:
    experts: dict[str, object] = {"expert_count": 8, "expert_used_count": 2}
    check(**experts, expert_group_count=4, expert_group_used_count=2)
    for groups, used in ((3, 2), (8, 2), (4, 0), (4, 4)):
        with pytest.raises(FormatError, match="expert_group"):
            check(**experts, expert_group_count=groups, expert_group_used_count=used)
