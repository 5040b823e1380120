"""Dense models as sources, and models with dense weights made from quantized ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from seeddelta.errors import FormatError, MissingFileError, OutputError, RecipeError, SourceModelError
from seeddelta.gguf import source as source_module
from seeddelta.gguf.dequantize import dequantize
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import can_dequantize, open_source
from tiny_models import TARGET_NAMES, finish, tiny_weights, write_model

# largest relative error of a Gaussian matrix that the type may have
ERRORS = {
    Kind.F32: 0,
    Kind.F16: 4e-4,
    Kind.BF16: 3e-3,
    Kind.Q8_0: 0.01,
    Kind.Q5_1: 0.05,
    Kind.Q4_0: 0.12,
    Kind.Q4_1: 0.1,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_types(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(source_module.row_ranges, chunk=1000)  # several chunks, the last one short
    monkeypatch.setattr(source_module, "row_ranges", few)
    model = open_source(write_model(tmp_path / "m.gguf", kind=kind))
    assert model.n_layers == 2
    for name, wanted in tiny_weights().items():
        if wanted.ndim == 2:
            got = model.matrix(name)
            assert got.dtype == np.float32
            assert got.shape == wanted.shape
            assert np.linalg.norm(got - wanted) <= ERRORS[kind] * np.linalg.norm(wanted)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q4_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ2_XXS, Kind.TQ2_0])
def test_types_that_gguf_py_only_reads(tmp_path: Path, kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 60, (8, 2 * size), np.uint8)  # no exponent of a half is all ones
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    finish(writer)
    got = open_source(tmp_path / "m.gguf").matrix("blk.0.ffn_up.weight")
    assert got.shape == (8, 2 * block)
    np.testing.assert_array_equal(got, gguf.quants.dequantize(raw, kind))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_bad_weights_are_named(tmp_path: Path, kind: Kind, value: float) -> None:
    weights = tiny_weights()
    weights["blk.1.attn_k.weight"][30, 7] = value
    model = open_source(write_model(tmp_path / "m.gguf", weights, kind))
    with pytest.raises(SourceModelError, match=r"m\.gguf: tensor 'blk\.1\.attn_k\.weight' has .* row 30, column 7"):
        model.matrix("blk.1.attn_k.weight")


def test_what_is_no_dense_model(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        open_source(tmp_path / "nothing.gguf")
    (tmp_path / "text").write_text("not a model at all, only some text")
    with pytest.raises(FormatError, match="not a GGUF file"):
        open_source(tmp_path / "text")
    for key, value, message in (("general.type", "imatrix", "--imatrix"),):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint16(key, value)
        writer.add_tensor("t", np.ones(8, np.float32))
        finish(writer)
        with pytest.raises(SourceModelError, match=message):
            open_source(tmp_path / "m.gguf")


def test_types_without_weights() -> None:
    assert can_dequantize(Kind.IQ1_S)
    assert not can_dequantize(Kind.I32)
    assert not can_dequantize(Kind.Q8_K)


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_dequantize_a_quantized_model(tmp_path: Path, type: str) -> None:
    source = write_model(tmp_path / "q.gguf", kind=Kind.Q4_1)
    result = dequantize(source, tmp_path / "d.gguf", type=type, progress=False)
    old, new = open_source(source), open_source(result)
    assert list(new.tensors) == list(old.tensors)
    assert new.metadata["general.file_type"] == (1 if type == "f16" else 0)
    assert list(new.metadata["tokenizer.ggml.tokens"]) == ["<s>", "a", "Ω", "\n"]
    for name, info in new.tensors.items():
        assert info.type == (Kind.F32 if len(info.shape) == 1 or type == "f32" else Kind.F16)
        wanted = old.matrix(name)
        got = new.matrix(name)
        np.testing.assert_array_equal(got, wanted.astype(np.float16).astype(np.float32) if type == "f16" else wanted)


@pytest.mark.parametrize("kind", [Kind.BF16, Kind.Q8_0, Kind.Q5_1, Kind.Q4_0])
def test_dequantize_to_another_type(tmp_path: Path, kind: Kind) -> None:
    """What comes out is gguf-py's own quantization, where the rows are blocks of it; a router stays as it is."""
    weights = tiny_weights() | {"blk.0.ffn_gate_inp.weight": np.ones((4, 64), np.float32)}
    weights["blk.1.ffn_down.weight"] = np.random.default_rng(1).normal(0, 1, (64, 40)).astype(np.float32)
    source = write_model(tmp_path / "s.gguf", weights, Kind.F32)
    dequantize(source, tmp_path / "d.gguf", type=kind.name.lower(), progress=False)
    new, old = open_source(tmp_path / "d.gguf"), open_source(source)
    quantized = kind != Kind.BF16
    for name, info in new.tensors.items():
        odd = name == "blk.1.ffn_down.weight" and quantized
        same = len(info.shape) == 1 or name == "blk.0.ffn_gate_inp.weight"
        assert info.type == (Kind.F32 if same else Kind.F16 if odd else kind), name
        wanted = old.matrix(name)
        if info.type == kind:
            wanted = gguf.quants.dequantize(gguf.quants.quantize(wanted, kind), kind)
        elif odd:
            wanted = wanted.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(new.matrix(name), wanted)


def test_dequantize_refuses(tmp_path: Path) -> None:
    source = write_model(tmp_path / "a.gguf", kind=Kind.F32)
    with pytest.raises(OutputError, match="is an input"):
        dequantize(source, source, progress=False)
    with pytest.raises(RecipeError, match="choose from f32, f16"):
        dequantize(source, tmp_path / "b.gguf", type="q4", progress=False)
    with pytest.raises(MissingFileError, match="no such file"):
        dequantize(tmp_path / "nothing", tmp_path / "b.gguf", progress=False)
    with pytest.raises(OutputError, match="does not exist"):
        dequantize(source, tmp_path / "no" / "b.gguf", progress=False)
    weights = tiny_weights()
    weights[TARGET_NAMES[3]][0, 0] = 1e6
    with pytest.raises(SourceModelError, match=f"{TARGET_NAMES[3]}.*does not fit F16"):
        dequantize(write_model(tmp_path / "big.gguf", weights, Kind.F32), tmp_path / "b.gguf", progress=False)
    assert not (tmp_path / "b.gguf").exists()
    assert read_header(source).tensors
