"""Importance matrices: both forms, both ways, and everything that can be wrong with them."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from legacy_imatrix import write_imatrix
from seeddelta.errors import ImatrixError
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, read_imatrix


def sample(counts: float = 96.0, chunk_size: int = 32) -> Imatrix:
    rng = np.random.default_rng(3)
    entries = {
        f"blk.{layer}.ffn_up.weight": ImatrixEntry(
            rng.gamma(1.0, 50.0, (1, 64)).astype(np.float32), np.array([counts], np.float32)
        )
        for layer in range(3)
    }
    return Imatrix(entries, ("wiki.train", "Ωmega.txt"), 3, chunk_size)


@pytest.mark.parametrize("legacy", [False, True])
def test_round_trip(tmp_path: Path, legacy: bool) -> None:
    path, wanted = tmp_path / "imatrix", sample()
    write_imatrix(path, wanted, legacy=legacy)
    got = read_imatrix(path)
    assert list(got.entries) == sorted(wanted.entries)
    assert got.chunk_count == 3
    for name, entry in wanted.entries.items():
        np.testing.assert_allclose(got.entries[name].mean_square(), entry.mean_square(), rtol=3e-7)
        np.testing.assert_allclose(got.importance(name, 64), wanted.importance(name, 64), rtol=1e-6)
    if legacy:  # the old form has one dataset, and counts in chunks
        assert got.datasets == ("Ωmega.txt",)
        assert got.entries["blk.0.ffn_up.weight"].counts.tolist() == [3.0]
    else:
        assert got.datasets == wanted.datasets
        assert got.chunk_size == wanted.chunk_size
        for name, entry in wanted.entries.items():
            np.testing.assert_array_equal(got.entries[name].sums, entry.sums)
            np.testing.assert_array_equal(got.entries[name].counts, entry.counts)


def test_gguf_form_is_what_llama_cpp_writes(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    write_imatrix(path, sample())
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["wiki.train", "Ωmega.txt"]
    assert reader.fields["imatrix.chunk_count"].types == [gguf.GGUFValueType.UINT32]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["blk.1.ffn_up.weight.in_sum2"].shape.tolist() == [64, 1]
    assert tensors["blk.1.ffn_up.weight.counts"].shape.tolist() == [1, 1]
    assert "general.architecture" not in reader.fields


def test_legacy_bytes(tmp_path: Path) -> None:
    """The file that llama.cpp's own writer makes for one entry, byte by byte."""
    values = np.array([2.0, 4.0, 6.0], np.float32)
    path = tmp_path / "imatrix.dat"
    path.write_bytes(
        struct.pack("<i", 1) + struct.pack("<i", 3) + b"abc" + struct.pack("<ii", 2, 3) + values.tobytes()
        + struct.pack("<ii", 2, 4) + b"wiki"
    )  # fmt: skip
    imatrix = read_imatrix(path)
    assert imatrix.entries["abc"].mean_square().tolist() == [1.0, 2.0, 3.0]
    assert (imatrix.chunk_count, imatrix.datasets) == (2, ("wiki",))
    again = tmp_path / "again.dat"
    write_imatrix(again, imatrix, legacy=True)
    assert again.read_bytes() == path.read_bytes()
    path.write_bytes(path.read_bytes()[: -4 - 4 - 4])  # files from before the dataset was stored
    assert read_imatrix(path).entries["abc"].mean_square().tolist() == [1.0, 2.0, 3.0]


def test_experts_and_empty_counts() -> None:
    entry = ImatrixEntry(np.array([[2, 4], [9, 9]], np.float32), np.array([2, 0], np.float32))
    assert entry.mean_square().tolist() == [1, 2, 1, 1]


def test_importance_formula() -> None:
    mean_square = np.array([1.0, 4.0, 0.0, 3.0])
    imatrix = Imatrix({"t": ImatrixEntry(np.float32(mean_square[None] * 8), np.array([8], np.float32))})
    expected = (mean_square + 0.1 * mean_square.mean()) ** 0.5
    got = imatrix.importance("t", 4, power=0.5, eps=0.1)
    np.testing.assert_allclose(got, expected / expected.mean(), rtol=1e-6)
    assert imatrix.importance("t", 4).min() > 0  # the encoder needs positive weights
    assert imatrix.importance("t", 4, power=0).tolist() == [1, 1, 1, 1]
    tiny = Imatrix({"t": ImatrixEntry(np.float32(mean_square[None] * 1e-30), np.array([1], np.float32))})
    np.testing.assert_allclose(tiny.importance("t", 4, power=4), imatrix.importance("t", 4, power=4), rtol=1e-5)


def test_missing_entry_names_tensor_and_remedy() -> None:
    with pytest.raises(ImatrixError, match=r"no entry for tensor 'blk\.7\.ffn_up\.weight'.*--layers"):
        sample().importance("blk.7.ffn_up.weight", 64)
    with pytest.raises(ImatrixError, match="64 values for 32 columns"):
        sample().importance("blk.0.ffn_up.weight", 32)
    zero = Imatrix({"t": ImatrixEntry(np.zeros((1, 4), np.float32), np.ones(1, np.float32))})
    with pytest.raises(ImatrixError, match="zero everywhere"):
        zero.importance("t", 4)


@pytest.mark.parametrize("legacy", [False, True])
def test_truncation(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "imatrix"
    write_imatrix(path, sample(), legacy=legacy)
    data = path.read_bytes()
    # what comes after the last entry of the legacy form is optional
    end = len(data) - 8 - len("Ωmega.txt".encode()) if legacy else len(data) - 32
    for cut in range(0, end, 13):
        path.write_bytes(data[:cut])
        with pytest.raises(ImatrixError, match="imatrix"):
            read_imatrix(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("legacy", [False, True])
def test_bad_values(tmp_path: Path, value: float, legacy: bool) -> None:
    imatrix = sample()
    imatrix.entries["blk.1.ffn_up.weight"].sums[0, 5] = value
    write_imatrix(tmp_path / "imatrix", imatrix, legacy=legacy)
    with pytest.raises(ImatrixError, match=r"blk\.1\.ffn_up\.weight.*negative"):
        read_imatrix(tmp_path / "imatrix")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\0",
        struct.pack("<i", 1 << 30) + bytes(100),
        struct.pack("<ii", 1, -5) + bytes(100),
        struct.pack("<ii", 1, 1 << 30) + bytes(100),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 1 << 30),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, -1),
    ],
)
def test_hostile_legacy(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(data)
    with pytest.raises(ImatrixError, match=r"imatrix\.dat"):
        read_imatrix(path)


def test_model_is_no_imatrix_and_missing_file(tmp_path: Path) -> None:
    from tiny_models import write_model

    with pytest.raises(ImatrixError, match="no importance entries"):
        read_imatrix(write_model(tmp_path / "model.gguf"))
    with pytest.raises(ImatrixError, match="cannot be read"):
        read_imatrix(tmp_path / "nothing.gguf")
