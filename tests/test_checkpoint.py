"""Records and folders of them: what is read back, what counts as none, and who may use a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeddelta.errors import OutputError
from seeddelta.storage.checkpoint import (
    Record,
    Store,
    open_record,
    read_record,
    stored_bytes,
    write_record,
)

pytest.importorskip("fcntl")
KEY = {"model": "a", "layers": (1, 2), "rate": 0.1}
ARRAYS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    "empty": np.empty((0, 3), np.int8),
    "scalar": np.array(1e-17),
}


def written(path: Path) -> Record:
    return write_record(path, KEY, {"step": 2}, ARRAYS.items())


def test_a_record_comes_back(tmp_path: Path) -> None:
    made = written(tmp_path / "one")
    found = read_record(tmp_path / "one", KEY)
    assert found == made
    assert found is not None
    assert found.state == {"step": 2}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.array(name), array, strict=True)
        assert b"".join(piece.tobytes() for piece in found.pieces(name)) == array.tobytes()
    assert read_record(tmp_path / "one", KEY | {"rate": 0.2}) is None


def test_arrays_are_written_one_at_a_time(tmp_path: Path) -> None:
    """Each goes to the disk before the next one is asked for; one larger than a piece is read in pieces."""
    sizes: list[int] = []

    def arrays() -> Iterator[tuple[str, Any]]:
        for name in "abc":
            (temporary,) = tmp_path.glob(".one.*")
            sizes.append(temporary.stat().st_size)
            yield name, np.full(5 << 20, ord(name), np.float32)

    found = write_record(tmp_path / "one", KEY, {}, arrays())
    assert sizes[1] >= 19 << 20
    assert sizes[2] >= 39 << 20
    assert [len(piece) for piece in found.pieces("b")] == [1 << 24, 4 << 20]
    assert found.array("b").mean() == ord("b")


def test_no_damage_goes_unseen(tmp_path: Path) -> None:
    path = tmp_path / "one"
    written(path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert read_record(path, KEY) is None, at
        path.write_bytes(data[:at])
        assert read_record(path, KEY) is None, at
    path.write_bytes(data)
    assert open_record(path).key == {**KEY, "layers": [1, 2]}
    for other in (b"PK\x03\x04", b"seeddelta part 1 " + bytes(100), b'{"identity": 1}'):  # of earlier releases
        path.write_bytes(other)
        assert read_record(path, KEY) is None
    with Store(tmp_path, busy="busy") as store:
        (tmp_path / "old.sdpart").write_bytes(b"seeddelta part 1 ")
        assert store.load("old", KEY) is None
        assert not store.has("old")


def test_a_record_that_changes_while_it_is_used(tmp_path: Path) -> None:
    found = written(tmp_path / "one")
    os.truncate(tmp_path / "one", 90)
    with pytest.raises(OutputError, match=r"one: was changed by another program.*run again"):
        found.array("a")
    (tmp_path / "one").unlink()
    with pytest.raises(OutputError, match="run again"):
        found.array("a")


def test_a_folder_of_records(tmp_path: Path) -> None:
    folder, other = tmp_path / "a" / "parts", tmp_path / "other"
    with Store(folder, busy="in use") as store:
        store.save("one", KEY, {}, ARRAYS.items())
        store.save("two", KEY, {})
        with pytest.raises(OutputError, match=r"parts: in use"), Store(folder, busy="in use"):
            pass
    with Store(other, busy="in use") as store:
        store.save("one", KEY, {}, ARRAYS.items())
    (folder / "notes").write_text("not ours")
    assert stored_bytes(folder) > stored_bytes(other) > 0 == stored_bytes(None)
    with Store(folder, busy="in use") as store:
        store.keep_only({"one"})
        assert store.has("one")
        assert not store.has("two")
        store.finish()
    assert os.listdir(folder) == ["notes"]
    with Store(other, busy="in use", resume=False) as store:
        assert not store.has("one")
    assert not other.exists()
    with Store.beside(tmp_path / "out", busy="in use") as store:
        assert store.save("one", KEY, {}).path.parent.parent == tmp_path
    assert os.listdir(tmp_path) == ["a"]


KILLED = """
import os, pathlib, signal, sys
import numpy as np
from seeddelta.storage.checkpoint import Store
def arrays():
    yield "a", np.zeros(9)
    os.kill(os.getpid(), signal.SIGKILL)
output = pathlib.Path(sys.argv[1])
with Store(output, busy="") if sys.argv[2] == "there" else Store.beside(output, busy="") as store:
    store.save("one", 1, {})
    store.save("two", 1, {}, arrays())
"""


@pytest.mark.parametrize("where", ["there", "beside"])
def test_what_a_killed_run_leaves(tmp_path: Path, where: str) -> None:
    """Whole records stay where they are looked for; a half one, and a folder that nobody looks into, go."""
    output = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(output), where]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    (folder,) = tmp_path.iterdir()
    assert len(os.listdir(folder)) == 3
    with Store(output, busy="") if where == "there" else Store.beside(output, busy="") as store:
        assert len(os.listdir(tmp_path)) == 1
        assert store.has("one") == (where == "there")
        assert sorted(os.listdir(store.folder)) == ["lock.sdpart", *(["one.sdpart"] if where == "there" else [])]
