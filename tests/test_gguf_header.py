"""The header parser agrees with gguf-py on good files and names what is wrong with bad ones."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeddelta.errors import FormatError, MissingFileError
from seeddelta.gguf.model_file import read_header
from tiny_models import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("alignment", [None, 64])
def test_agrees_with_gguf_py(tmp_path: Path, alignment: int | None) -> None:
    path = write_model(tmp_path / "tiny.gguf", alignment=alignment)
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.alignment == (alignment or 32)
    assert header.data_offset == reader.data_offset
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.type, info.offset, info.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
    for key, value in header.metadata.items():
        expected = reader.fields[key].contents()
        assert list(value) == expected if isinstance(expected, list) else value == expected


def make(values: bytes = b"", tensors: bytes = b"", counts: tuple[int, int] = (0, 0), tail: int = 64) -> bytes:
    """A GGUF of hand-made parts; counts are (tensors, values)."""
    header = b"GGUF" + struct.pack("<IQQ", 3, *counts) + values + tensors
    return header + bytes(-len(header) % 32 + tail)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def tensor(name: str, dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def array(key: str, item: int, count: int, data: bytes = b"") -> bytes:
    return text(key) + struct.pack("<IIQ", 9, item, count) + data


BAD = {
    "magic": (b"GGML" + make()[4:], "not a GGUF file"),
    "short": (b"GGUF", "too short"),
    "empty": (b"", "too short"),
    "version": (b"GGUF" + struct.pack("<I", 9) + make()[8:], "version 9"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + make()[8:], "big-endian"),
    "many values": (make(counts=(0, 1 << 60)), "impossible counts"),
    "many tensors": (make(counts=(1 << 60, 0)), "impossible counts"),
    "long key": (make(struct.pack("<Q", 1 << 62), counts=(0, 1)), "ends inside a key"),
    "no UTF-8": (make(text(b"\xff\xfe") + struct.pack("<Ib", 7, 1), counts=(0, 1)), "UTF-8"),
    "long string": (make(text("k") + struct.pack("<IQ", 8, 1 << 63), counts=(0, 1)), "ends inside the value of k"),
    "long array": (make(array("k", 4, 1 << 61), counts=(0, 1)), "ends inside the value of k"),
    "array of arrays": (make(array("k", 9, 1), counts=(0, 1)), "unknown type 9"),
    "value type": (make(text("k") + struct.pack("<I", 77), counts=(0, 1)), "unknown type 77"),
    "key twice": (make((text("k") + struct.pack("<Ib", 7, 1)) * 2, counts=(0, 2)), "'k' occurs twice"),
    "alignment": (make(text("general.alignment") + struct.pack("<II", 4, 48), counts=(0, 1)), "power of two"),
    "no dimensions": (make(tensors=tensor("t", ()), counts=(1, 0)), "0 dimensions"),
    "dimensions": (make(tensors=tensor("t", (1,) * 5), counts=(1, 0)), "5 dimensions"),
    "zero rows": (make(tensors=tensor("t", (8, 0)), counts=(1, 0)), "impossible shape"),
    "product overflows": (make(tensors=tensor("t", (1 << 33, 1 << 33)), counts=(1, 0)), "impossible shape"),
    "tensor type": (make(tensors=tensor("t", kind=999), counts=(1, 0)), "unknown type 999"),
    "partial block": (make(tensors=tensor("t", (33,), kind=2), counts=(1, 0)), "block of Q4_0"),
    "odd offset": (make(tensors=tensor("t", offset=8), counts=(1, 0)), "multiple of 32"),
    "beyond the end": (make(tensors=tensor("t", offset=64), counts=(1, 0)), "'t' ends behind the end"),
    "far beyond": (make(tensors=tensor("t", offset=(1 << 64) - 32), counts=(1, 0)), "'t' ends behind the end"),
    "name twice": (make(tensors=tensor("t") + tensor("t", offset=32), counts=(2, 0)), "'t' occurs twice"),
    "overlap": (make(tensors=tensor("t", (16,)) + tensor("u", offset=32), counts=(2, 0)), "'t' and 'u' overlap"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_header_is_named(tmp_path: Path, case: str) -> None:
    data, message = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_good_hand_made_header(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    values = (
        array("none", 8, 0) + array("numbers", 4, 2, struct.pack("<II", 5, 6)) + text("") + struct.pack("<Ib", 7, 1)
    )
    path.write_bytes(make(values, tensor("t") + tensor("u", offset=32), counts=(2, 3)))
    header = read_header(path)
    assert header.metadata["none"] == []
    assert header.metadata["numbers"].tolist() == [5, 6]
    assert header.metadata[""] is True
    assert [info.offset - header.data_offset for info in header.tensors.values()] == [0, 32]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        read_header(tmp_path / "nothing.gguf")
    with pytest.raises(FormatError, match="is no regular file"):
        read_header(tmp_path)


def test_truncation_anywhere_is_found(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    header_size = read_header(model).data_offset
    cuts = [*range(0, header_size, 37), *range(header_size, len(data) - 32, len(data) // 40)]
    cut = tmp_path / "cut.gguf"
    for at in cuts:
        cut.write_bytes(data[:at])
        with pytest.raises(FormatError, match=r"cut\.gguf"):
            read_header(cut)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_give_a_header_or_a_format_error(model: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(model.read_bytes())
    end = read_header(model).data_offset
    for at in data.draw(st.lists(st.integers(4, end - 1), min_size=1, max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    try:
        header = read_header(path)
        for key in header.metadata:
            header.metadata[key]
    except FormatError:
        return
    for info in header.tensors.values():
        assert info.offset + info.nbytes <= len(raw)
        assert info.nbytes >= 0
        assert np.prod(info.shape) > 0
