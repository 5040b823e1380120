"""A short run of damaged models through llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from models import MODEL_MEMORY, model_subject
from mutate import run
from seeddelta.errors import FormatError
from seeddelta.gguf.header import read_header
from seeddelta.runtime.view import make_view
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


@pytest.mark.parametrize("alignment", [1, 8, 16, 48])
def test_alignments_that_llama_cpp_does_not_survive(alignment: int) -> None:
    header = read_header(sorted((TESTS / "golden").glob("*.gguf"))[0])
    make_view(header, []).close()
    header.alignment = alignment
    with pytest.raises(FormatError, match=f"general.alignment is {alignment}"):
        make_view(header, [])
