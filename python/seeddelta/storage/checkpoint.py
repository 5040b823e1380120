"""Unfinished work on disk, so that a killed run can go on: records, each an atomic file, and folders of them.

A record is `seeddelta record 1 <sha256 of the rest>`, the bytes of its arrays one after the other, a line of JSON (key,
state, and where each array is) and the length of the line in 8 bytes. Its key is all that decides what is in it: a
record of another key, a damaged one, and any other file count as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OutputError
from .output import atomic_output, hold, is_abandoned, output_error

Array = np.ndarray[Any, Any]
_MAGIC = b"seeddelta record 1 "
_FIRST = len(_MAGIC) + 64 + 1  # bytes before the arrays
_SUFFIX = ".sdpart"
_LOCK = "lock.sdpart"
_PIECE = 1 << 24
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Stored:
    """An array of a record: its bytes begin at `offset` of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Record:
    """A whole record: `key` and `state` as JSON gives them; arrays stay on disk until they are asked for."""

    path: Path
    key: Any
    state: dict[str, Any]
    arrays: Mapping[str, Stored]

    def pieces(self, name: str) -> Iterator[Array]:
        """Bytes of an array, uint8 [up to 16 Mi] each. Raises OSError when the file has been removed, EOFError when it
        has become shorter."""
        array = self.arrays[name]
        left = int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize
        with self.path.open("rb") as file:
            file.seek(array.offset)
            while left:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise EOFError(f"{self.path}: became shorter")
                left -= len(piece)
                yield np.frombuffer(piece, np.uint8)

    def array(self, name: str) -> Array:
        """A whole array. Raises OutputError when the file has been removed or cut since it was opened."""
        stored = self.arrays[name]
        array = np.empty(stored.shape, stored.dtype)
        data, done = array.reshape(-1).view(np.uint8), 0
        try:
            for piece in self.pieces(name):
                data[done : done + len(piece)] = piece
                done += len(piece)
        except (OSError, EOFError) as error:
            raise OutputError(f"{self.path}: was changed by another program ({error}); run again") from error
        return array


def write_record(path: Path, key: Any, state: Mapping[str, Any], arrays: Iterable[tuple[str, Array]] = ()) -> Record:
    """Replace a record atomically. `key` and `state` are JSON; arrays are taken one at a time. Raises OutputError."""
    places: dict[str, Stored] = {}
    digest = hashlib.sha256()
    with atomic_output(path) as temporary, temporary.open("wb") as file:
        file.write(bytes(_FIRST))  # until the digest is known: no record if it ended here
        for name, array in arrays:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            places[name] = Stored(array.dtype, array.shape, file.tell())
            digest.update(data)
            file.write(data)
        table = {name: [one.dtype.str, one.shape, one.offset] for name, one in places.items()}
        text = json.dumps({"key": key, "state": state, "arrays": table}).encode() + b"\n"
        last = text + len(text).to_bytes(8, "little")
        digest.update(last)
        file.write(last)
        file.seek(0)
        file.write(_MAGIC + digest.hexdigest().encode() + b"\n")
    told = json.loads(text)
    return Record(path, told["key"], told["state"], places)


def open_record(path: Path) -> Record:
    """Open and check a record of any key. Raises OSError, and ValueError when it is damaged or no record."""
    with path.open("rb") as file:
        first, digest = file.read(_FIRST), hashlib.sha256()
        while piece := file.read(_PIECE):
            digest.update(piece)
        if first != _MAGIC + digest.hexdigest().encode() + b"\n":
            raise ValueError(f"{path}: damaged")
        end = file.tell() - 8
        file.seek(end)
        size = int.from_bytes(file.read(8), "little")
        file.seek(end - size)
        told = json.loads(file.read(size))
    arrays = {name: Stored(np.dtype(kind), tuple(shape), at) for name, (kind, shape, at) in told["arrays"].items()}
    return Record(path, told["key"], told["state"], arrays)


def read_record(path: Path, key: Any) -> Record | None:
    """The record if it is whole and has this key."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        record = open_record(path)
        if record.key == json.loads(json.dumps(key)):
            return record
    return None


class Store:
    """A folder of records, used by one run at a time; a context manager.

    Records stay until `finish`. `resume` False removes those of earlier runs, `busy` is told when another run has the
    folder. Raises OutputError when the folder cannot be written, or is in use. Files of others in it are left alone.
    """

    def __init__(self, folder: Path, *, busy: str, resume: bool = True) -> None:
        self.folder = folder
        self._busy, self._resume = busy, resume
        self._output: Path | None = None
        self._done = False

    @classmethod
    def beside(cls, output: Path, *, busy: str) -> Store:
        """A folder of its own beside an output, which goes with the block, or when the next one is made."""
        store = cls(output, busy=busy)
        store._output, store._done = output, True
        return store

    def __enter__(self) -> Store:
        try:
            if self._output is not None:
                self.folder = _temporary_folder(self._output)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / _LOCK).open("w")
        except OSError as error:
            raise output_error(self.folder, error) from error
        try:
            if not hold(self._lock.fileno()):
                raise OutputError(f"{self.folder}: {self._busy}")
            for left in self.folder.glob(f".*{_SUFFIX}.*.part"):  # unfinished when a run was killed
                left.unlink()
            if not self._resume:
                self.keep_only(())
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._done:
            self.keep_only(())
        if not self._stored():
            (self.folder / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in the folder: it is not ours to remove
                self.folder.rmdir()
        self._lock.close()

    def finish(self) -> None:
        """The work is done: the records go when the block ends."""
        self._done = True

    def has(self, name: str) -> bool:
        """True when there is a record of the name, whole or not."""
        return self._path(name).is_file()

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove all other records."""
        wanted = {self._path(name) for name in names}
        for path in self._stored():
            if path not in wanted:
                path.unlink(missing_ok=True)

    def load(self, name: str, key: Any) -> Record | None:
        """The record of a name if it is whole and has this key; any other is removed."""
        record = read_record(self._path(name), key)
        if record is None:
            self._path(name).unlink(missing_ok=True)
        return record

    def save(self, name: str, key: Any, state: Mapping[str, Any], arrays: Iterable[tuple[str, Array]] = ()) -> Record:
        """Store a record atomically, see `write_record`. Raises OutputError."""
        return write_record(self._path(name), key, state, arrays)

    def _path(self, name: str) -> Path:
        if _PLAIN.fullmatch(name) is None:  # the name comes from a model and is no path
            name = hashlib.sha256(name.encode()).hexdigest()
        return self.folder / f"{name}{_SUFFIX}"

    def _stored(self) -> list[Path]:
        return [path for path in self.folder.glob(f"*{_SUFFIX}") if path.name != _LOCK]


def stored_bytes(folder: Path | None) -> int:
    """Bytes that the records of an earlier run take."""
    if folder is None or not folder.is_dir():
        return 0
    return sum(os.stat(path).st_size for path in folder.glob(f"*{_SUFFIX}"))


def _temporary_folder(output: Path) -> Path:
    """A new folder beside an output; those that killed runs left there go."""
    prefix, suffix = f".{output.name}.", ".parts"
    for left in output.parent.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(suffix) and is_abandoned(left / _LOCK):
            shutil.rmtree(left)
    return Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=output.parent))
