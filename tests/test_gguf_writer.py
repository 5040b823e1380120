"""Writing: what is copied stays the same, and what fails leaves no trace."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from seeddelta.errors import OutputError
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, write_gguf
from seeddelta.storage.output import atomic_output
from tiny_models import write_model


def copy(source: Path, target: Path) -> int:
    model = open_source(source)
    plan = [PlannedTensor(info.name, info.shape, info.type) for info in model.tensors.values()]
    return write_gguf(
        target,
        copied_metadata(model.header),
        plan,
        lambda tensor: np.array_split(model.raw(tensor.name), 3),
    )


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("alignment", [None, 128])
def test_a_copy_is_the_same_file(tmp_path: Path, kind: GGMLQuantizationType, alignment: int | None) -> None:
    source = write_model(tmp_path / "a.gguf", kind=kind, alignment=alignment)
    size = copy(source, tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == source.read_bytes()
    assert size == source.stat().st_size
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "b.gguf"]


def test_empty_arrays_are_copied(tmp_path: Path) -> None:
    """gguf-py refuses to write them, llama.cpp does write them."""
    key = struct.pack("<Q", 5) + b"empty" + struct.pack("<IIQ", 9, 8, 0)
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + key + tensor
    source = tmp_path / "a.gguf"
    source.write_bytes(head + bytes(-len(head) % 32 + 32))
    copy(source, tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == source.read_bytes()


def test_failure_in_the_middle_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"old")

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        yield np.zeros(8, np.float32)
        raise KeyboardInterrupt

    plan = [PlannedTensor("t", (16,), GGMLQuantizationType.F32)]
    with pytest.raises(KeyboardInterrupt):
        write_gguf(target, {}, plan, chunks)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_wrong_number_of_bytes_is_an_error(tmp_path: Path) -> None:
    plan = [PlannedTensor("t", (16,), GGMLQuantizationType.F32)]
    with pytest.raises(RuntimeError, match="32 bytes given, 64 planned"):
        write_gguf(tmp_path / "out.gguf", {}, plan, lambda tensor: [np.zeros(8, np.float32)])
    assert os.listdir(tmp_path) == []


def test_permissions_of_the_result(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with atomic_output(tmp_path / "new") as temporary:
            temporary.write_bytes(b"x")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    finally:
        os.umask(old)
    (tmp_path / "new").chmod(0o604)
    with atomic_output(tmp_path / "new") as temporary:
        temporary.write_bytes(b"y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    locked = tmp_path / "locked.gguf"
    locked.write_bytes(b"old")
    locked.chmod(0o444)
    cases = {
        tmp_path: "is a folder",
        tmp_path / "nowhere" / "out.gguf": "does not exist",
        locked: "read-only",
        locked / "out.gguf": "does not exist",
    }
    for path, message in cases.items():
        with pytest.raises(OutputError, match=message), atomic_output(path):
            pytest.fail("the block must not run")
    assert locked.read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into any folder")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match="read-only"), atomic_output(tmp_path / "out.gguf"):
        pass


def test_full_disk(tmp_path: Path) -> None:
    """A limit on the file size stands for the full disk: the write fails half-way, with a real errno."""
    target = tmp_path / "out.gguf"
    target.write_bytes(b"old")
    script = f"""
import resource, sys, numpy as np, gguf
from seeddelta.errors import OutputError
from seeddelta.gguf.writer import PlannedTensor, write_gguf
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
plan = [PlannedTensor("t", (1 << 20,), gguf.GGMLQuantizationType.F32)]
try:
    write_gguf({str(target)!r}, {{}}, plan, lambda tensor: [np.zeros(1 << 20, np.float32)])
except OutputError as error:
    sys.exit(f"named: {{error}}")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "named: " in result.stderr, result.stderr
    assert "free some space" in result.stderr
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_written_file_is_read_by_gguf_py(tmp_path: Path) -> None:
    source = write_model(tmp_path / "a.gguf", kind=GGMLQuantizationType.Q4_0)
    copy(source, tmp_path / "b.gguf")
    assert len(gguf.GGUFReader(tmp_path / "b.gguf").tensors) == len(read_header(source).tensors)
