"""Importance matrices between us and llama.cpp: ours drives its quantizer, its form drives our encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from legacy_imatrix import write_imatrix
from seeddelta.evaluate.quantize import LLAMA_TYPES, quantize
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, read_imatrix
from seeddelta.gguf.source import open_source
from tiny_llama import write_llama

TOKENS = 512


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "tiny-imatrix.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def mean_square(dense: Path) -> dict[str, Any]:
    """E[x²] of every matrix of the layers, float32[n_in], that differs by a factor of 100 from column to column."""
    random = np.random.default_rng(5)
    source = open_source(dense)
    names = [name for name, info in source.tensors.items() if name.startswith("blk.") and len(info.shape) == 2]
    return {name: (10 ** random.uniform(-1, 1, source.tensors[name].shape[1])).astype(np.float32) for name in names}


def weighted_error(dense: Path, other: Path, mean_square: dict[str, Any]) -> float:
    """sqrt(Σ E[x²]·(W − Ŵ)² / Σ E[x²]·W²) over all matrices."""
    source, changed = open_source(dense), open_source(other)
    sums = np.zeros(2)
    for name, weight in mean_square.items():
        w = source.matrix(name).astype(np.float64)
        sums += [(weight * (w - changed.matrix(name)) ** 2).sum(), (weight * w**2).sum()]
    return float(np.sqrt(sums[0] / sums[1]))


@pytest.mark.parametrize("legacy", [False, True])
def test_ours_drives_llama_quantize(dense: Path, mean_square: dict[str, Any], tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "imatrix"
    entries = {name: ImatrixEntry(TOKENS * m[None], np.array([TOKENS], np.float32)) for name, m in mean_square.items()}
    write_imatrix(path, Imatrix(entries, ("text",), 1, TOKENS), legacy=legacy)
    if legacy:
        found = {name: entry.mean_square() for name, entry in read_imatrix(path).entries.items()}
    else:  # not by our reader: what llama-quantize does with the file
        tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
        found = {
            name.removesuffix(".in_sum2"): (data / tensors[name.replace("in_sum2", "counts")]).ravel()
            for name, data in tensors.items()
            if name.endswith(".in_sum2")
        }
    assert set(found) == set(mean_square)
    importances = [(name.encode(), np.ascontiguousarray(values, np.float32)) for name, values in found.items()]
    plain, driven = tmp_path / "plain.gguf", tmp_path / "driven.gguf"
    quantize(dense, plain, LLAMA_TYPES["Q4_0"])
    quantize(dense, driven, LLAMA_TYPES["Q4_0"], importances=importances)
    errors = [weighted_error(dense, model, mean_square) for model in (plain, driven)]
    assert errors[1] < 0.93 * errors[0]


@pytest.mark.parametrize("legacy", [False, True])
def test_theirs_drives_our_encoder(dense: Path, mean_square: dict[str, Any], tmp_path: Path, legacy: bool) -> None:
    """A file as llama-imatrix writes it: by gguf-py, and the older .dat by hand.

    Not rotated: that would make all of so few columns alike.
    """
    path = tmp_path / "imatrix.gguf"
    if legacy:
        data = bytearray(np.int32(len(mean_square)).tobytes())
        for name, values in mean_square.items():
            sizes = np.array([3, values.size], "<i4").tobytes()  # three chunks; the values are mean · chunks
            data += np.int32(len(name)).tobytes() + name.encode() + sizes + (3 * values).astype("<f4").tobytes()
        path.write_bytes(data + np.array([3, 4], "<i4").tobytes() + b"text")
    else:
        writer = gguf.GGUFWriter(path, "")
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", ["text"])
        writer.add_uint32("imatrix.chunk_count", 3)
        writer.add_uint32("imatrix.chunk_size", TOKENS)
        for name, values in mean_square.items():
            writer.add_tensor(f"{name}.in_sum2", 3 * TOKENS * values[None])
            writer.add_tensor(f"{name}.counts", np.full((1, 1), 3 * TOKENS, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    errors = []
    for given in (None, path):
        output = tmp_path / f"{given is None}.gguf"
        recipe = seeddelta.Recipe(
            input=dense, output=output, bits=4, effort="fast", imatrix=given, targets="all", rotation_block=0
        )
        report = seeddelta.build(recipe, progress=False)
        assert {row.method for row in report.tensors} == {"plain" if given is None else "weighted"}
        back = seeddelta.dequantize(output, tmp_path / "back.gguf", progress=False)
        errors.append(weighted_error(dense, back, mean_square))
    assert errors[1] < 0.93 * errors[0]
