"""Types through ggml's own to_float: as gguf-py has them, and those that only ggml has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType as Kind
from seeddelta.errors import SourceModelError
from seeddelta.gguf.ggml_types import by_ggml
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import can_dequantize, open_source
from tiny_models import N_EMBD, finish

llama_cpp = pytest.importorskip("llama_cpp")

BOTH = [kind for kind in Kind if kind in gguf.quants._type_traits]
ONLY_GGML = "Q1_0"  # of ggml since 2026; gguf-py has its size and no more


def blocks(kind: Kind, rows: int, count: int) -> np.ndarray[Any, Any]:
    """Random bytes, uint8[rows, bytes], small enough that no half is infinite."""
    return np.random.default_rng(kind.value).integers(0, 60, (rows, count * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.name)
def test_ggml_agrees_with_gguf_py(kind: Kind) -> None:
    dequantize = by_ggml(kind)
    if dequantize is None:
        assert kind.name in ("MXFP4", "NVFP4")  # which an old llama.cpp lacks
        pytest.skip(f"llama-cpp-python {llama_cpp.__version__} does not turn {kind.name} into floats")
    raw = blocks(kind, 16, 4)
    found = dequantize(raw).reshape(16, -1)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) > 10
    np.testing.assert_array_equal(found, gguf.quants.dequantize(raw, kind))


def only_ggml() -> Kind:
    kind = getattr(Kind, ONLY_GGML, None)
    if kind is None or kind in gguf.quants._type_traits or by_ggml(kind) is None:
        pytest.skip(f"no type that llama-cpp-python {llama_cpp.__version__} has and gguf-py has not")
    return kind


def signs_of(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Q1_0 by its definition in ggml-common.h: a half for 128 weights, and their signs as bits."""
    cells = raw.reshape(-1, 18)
    scale = np.ascontiguousarray(cells[:, :2]).view(np.float16).astype(np.float32)
    signs = np.unpackbits(cells[:, 2:], axis=1, bitorder="little")
    return np.where(signs, scale, -scale).reshape(len(raw), -1).astype(np.float32)


def write(path: Path, kind: Kind) -> np.ndarray[Any, Any]:
    raw = blocks(kind, N_EMBD, 2)
    raw.reshape(-1, 18)[:, 1] = 0x28  # scales of about 0.03
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tensor("blk.0.ffn_down.weight", raw, raw_dtype=kind)
    finish(writer)
    return raw


def test_a_type_that_only_ggml_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = only_ggml()
    path = tmp_path / "m.gguf"
    wanted = signs_of(write(path, kind))
    assert can_dequantize(kind)
    np.testing.assert_array_equal(open_source(path).matrix("blk.0.ffn_down.weight"), wanted)
    report = seeddelta.build(seeddelta.Recipe(input=path, output=tmp_path / "out.gguf"), progress=False)
    metrics = report.tensors[0].metrics
    assert metrics is not None
    assert metrics.rel_l2 < 0.2
    plain = seeddelta.dequantize(path, tmp_path / "plain.gguf", type="f32", progress=False)
    np.testing.assert_array_equal(open_source(plain).matrix("blk.0.ffn_down.weight"), wanted)
    assert read_header(plain).tensors["blk.0.ffn_down.weight"].type == Kind.F32
    # without llama.cpp it is refused by name
    by_ggml.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    try:
        with pytest.raises(SourceModelError, match=r"'blk\.0\.ffn_down\.weight' has the type Q1_0, which neither gguf"):
            seeddelta.build(seeddelta.Recipe(input=path, output=tmp_path / "out.gguf"), progress=False)
        with pytest.raises(SourceModelError, match="newer llama-cpp-python"):
            open_source(path).matrix("blk.0.ffn_down.weight")
    finally:
        by_ggml.cache_clear()
