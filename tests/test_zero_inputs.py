"""An input that is zero in every token says nothing of its columns: encoded without calibration, with a warning."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from seeddelta.errors import CalibrationWarning, ImatrixError
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, write_gguf

pytest.importorskip("llama_cpp")
SHORT = {"ctx": 64, "chunks": 4, "progress": False}


def with_zeros(source: Path, path: Path, *zero: str) -> Path:
    model = open_source(source)
    plan = [PlannedTensor(info.name, info.shape, info.type) for info in model.tensors.values()]
    write_gguf(
        path, copied_metadata(model.header), plan,
        lambda tensor: [np.zeros_like(model.raw(tensor.name)) if tensor.name in zero else model.raw(tensor.name)],
    )  # fmt: skip
    return path


def text_of(tiny_text: Path) -> dict[str, object]:
    return {**SHORT, "text": tiny_text}


@pytest.mark.parametrize("zero", ["blk.0.ffn_up.weight", "blk.1.attn_v.weight"])
def test_a_matrix_behind_a_zeroed_one_is_encoded_without(
    zero: str, tiny_dense: Path, tiny_text: Path, tmp_path: Path
) -> None:
    model = with_zeros(tiny_dense, tmp_path / "m.gguf", zero)
    reader = "ffn_down" if "ffn" in zero else "attn_output"
    layer = zero.split(".")[1]
    with pytest.warns(CalibrationWarning, match=f"blk.{layer}.{reader}.weight' is zero in every token"):
        report = seeddelta.quantize(model, tmp_path / "o.gguf", bits=4, **text_of(tiny_text))
    rows = {row.name: row for row in report.tensors}
    assert rows[f"blk.{layer}.{reader}.weight"].status == "converted"
    assert rows[f"blk.{layer}.{reader}.weight"].metrics.rel_l2 < 0.15


def test_a_layer_that_adds_nothing_has_no_gradients(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    model = with_zeros(tiny_dense, tmp_path / "m.gguf", "blk.1.attn_output.weight", "blk.1.ffn_down.weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = seeddelta.quantize(model, tmp_path / "o.gguf", bits=4, gradient="auto", **text_of(tiny_text))
    errors = {row.name: row.metrics.rel_l2 for row in report.tensors if row.metrics is not None}
    assert max(errors.values()) < 0.15


def test_an_imatrix_of_another_model_is_refused(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from seeddelta.calibrate import capture
    from seeddelta.gguf.imatrix import read_imatrix, write_imatrix

    imatrix = capture(tiny_dense, tiny_text, ctx=64, chunks=2, covariance=False, progress=False).imatrix()
    renamed = replace(imatrix, entries={f"other.{name}": entry for name, entry in imatrix.entries.items()})
    write_imatrix(tmp_path / "i.gguf", renamed)
    assert read_imatrix(tmp_path / "i.gguf").entries
    recipe = seeddelta.Recipe(input=tiny_dense, output=tmp_path / "o.gguf", bits=4, imatrix=tmp_path / "i.gguf")
    with pytest.raises(ImatrixError, match="make it with this model"):
        seeddelta.build(recipe, progress=False)
