"""A short run of damaged models through llama.cpp."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from models import MODEL_MEMORY, model_subject
from mutate import run
from seeddelta import _core
from seeddelta.errors import FormatError
from seeddelta.gguf.header import Header, Metadata
from seeddelta.gguf.model_file import read_header
from seeddelta.runtime.hyperparameters import check_hyperparameters
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


def changed(key: str, value: object) -> Header:
    header = read_header(sorted((TESTS / "golden").glob("*.gguf"))[0])
    check_hyperparameters(header)
    architecture = header.metadata["general.architecture"]
    metadata = dict(header.metadata) | {key.format(architecture): value}
    header.metadata = Changed(header.path, metadata)
    return header


class Changed(Metadata):
    def __init__(self, path: Path, given: dict[str, object]) -> None:
        super().__init__(path, dict.fromkeys(given))  # type: ignore[arg-type]
        self.given = given

    def __getitem__(self, key: str) -> object:
        return self.given[key]


@pytest.mark.parametrize("alignment", [1, 8, 16, 48])
def test_alignments_that_llama_cpp_does_not_survive(alignment: int) -> None:
    header = read_header(sorted((TESTS / "golden").glob("*.gguf"))[0])
    check_hyperparameters(header)
    header.alignment = alignment
    with pytest.raises(FormatError, match=f"general.alignment must be a multiple of 32, and is {alignment}"):
        check_hyperparameters(header)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("{}.block_count", 0),
        ("{}.block_count", 513),
        ("{}.expert_used_count", 1),
        ("{}.expert_used_count", np.array([1, 0], np.uint32)),
        ("{}.expert_group_count", 2),
        ("{}.attention.layer_norm_rms_epsilon", -1e-5),
        ("{}.attention.layer_norm_rms_epsilon", math.nan),
        ("{}.attention.layer_norm_epsilon", "1"),
        ("{}.rope.scaling.type", "other"),
    ],
)
def test_numbers_that_llama_cpp_does_not_survive(key: str, value: object) -> None:
    with pytest.raises(FormatError, match=key.removeprefix("{}").replace(".", r"\.")):
        check_hyperparameters(changed(key, value))


def test_vectors_that_llama_cpp_does_not_survive() -> None:
    path = sorted((TESTS / "golden").glob("*.gguf"))[0]
    given = {"a.weight": (0, (4,), np.zeros(4, np.float32)), "b.weight": (1, (4, 4), np.zeros((4, 4), np.float16))}
    _core.StubFile(path, {}, given).close()
    with pytest.raises(FormatError, match=r"'a\.weight' has one dimension and is F16"):
        _core.StubFile(path, {}, {"a.weight": (1, (4,), np.zeros(4, np.float16))})


def test_what_a_stub_file_cannot_have() -> None:
    path = sorted((TESTS / "golden").glob("*.gguf"))[0]
    with pytest.raises(FormatError, match=r"'c\.weight' is not there"):
        _core.StubFile(path, {"c.weight": "c.weight"}, {})
    for wrong in ((1, (4, 5), np.zeros((4, 4), np.float16)), (2, (4, 4), None), (99, (4, 4), None), (1, (), None)):
        with pytest.raises(ValueError, match=r"'a\.weight'"):
            _core.StubFile(path, {}, {"a.weight": wrong})


def test_experts_in_groups() -> None:
    header = changed("{}.expert_count", 8)
    assert isinstance(header.metadata, Changed)
    prefix = header.metadata["general.architecture"]
    header.metadata.given |= {f"{prefix}.expert_used_count": 2, f"{prefix}.expert_group_count": 4}
    header.metadata.given |= {f"{prefix}.expert_group_used_count": 2}
    header.metadata = Changed(header.path, header.metadata.given)
    check_hyperparameters(header)
    for groups, used in ((3, 2), (8, 2), (4, 0), (4, 4)):
        header.metadata.given |= {f"{prefix}.expert_group_count": groups, f"{prefix}.expert_group_used_count": used}
        with pytest.raises(FormatError, match="expert_group"):
            check_hyperparameters(header)
