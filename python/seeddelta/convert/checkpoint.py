"""Finished tensors of an unfinished build, one file each, so that a killed build can go on.

A part is `seeddelta part 1 <sha256 of the rest>`, a line of JSON, and the payload. Its key is the digest of all that
decided it (jobs.py), so parts of another model, recipe or encoder are never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import OutputError
from ..gguf.payload import payload_layout
from ..gguf.schema import TensorDescription
from ..gguf.writer import TYPE_OF_DTYPE, PlannedTensor, atomic_output, hold, is_abandoned, output_error
from .encode import EncodedTensor
from .report import Method, Metrics

_MAGIC = b"seeddelta part 1 "
_SUFFIX = ".sdpart"
_LOCK = "lock.sdpart"
_PIECE = 1 << 24


class PartHeader(BaseModel):
    """All of an encoded tensor but its payload, which follows in the order of `payload_layout(description)`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    description: TensorDescription
    metrics: Metrics
    method: Method
    base_seed: int
    seconds: float


@dataclass(frozen=True)
class Part:
    """A finished tensor on disk; the payload begins at `offset`."""

    header: PartHeader
    path: Path
    offset: int

    @property
    def payloads(self) -> list[PlannedTensor]:
        """The tensors of the file that the payload becomes."""
        description = self.header.description
        return [
            PlannedTensor(f"{description.stem}.{suffix}", shape, TYPE_OF_DTYPE[dtype])
            for suffix, (shape, dtype) in payload_layout(description).items()
        ]

    def read(self, tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        """Bytes of one of `payloads` in pieces. Raises OutputError when the part is no longer whole."""
        names = [payload.name for payload in self.payloads]
        before = sum(payload.nbytes for payload in self.payloads[: names.index(tensor.name)])
        left = tensor.nbytes
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + before)
                while left:
                    piece = file.read(min(left, _PIECE))
                    if not piece:
                        raise OutputError(f"{self.path}: became shorter during the build; build again")
                    left -= len(piece)
                    yield np.frombuffer(piece, np.uint8)
        except FileNotFoundError as error:
            raise OutputError(f"{self.path}: was removed during the build; build again") from error


class Checkpoint:
    """A folder of parts, used by one build at a time.

    `folder` None is a temporary folder beside the output that goes with the build. Otherwise the parts stay until
    `finish`. Raises OutputError when the folder cannot be written or another build uses it.
    """

    def __init__(self, output: Path, folder: Path | None, *, resume: bool = True) -> None:
        self.output = output
        self.temporary = folder is None
        self.resume = resume
        self._given = folder
        self._done = False

    def __enter__(self) -> Checkpoint:
        try:
            if self._given is None:
                prefix, suffix = f".{self.output.name}.", ".parts"
                for left in self.output.parent.iterdir():
                    if left.name.startswith(prefix) and left.name.endswith(suffix) and is_abandoned(left / _LOCK):
                        shutil.rmtree(left)
                name = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=self.output.parent)
                self.folder = Path(name)
            else:
                self.folder = self._given
                self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / _LOCK).open("w")
        except OSError as error:
            raise output_error(self._given or self.output, error) from error
        try:
            self._take_lock()
            for left in self.folder.glob(f".*{_SUFFIX}.*.part"):  # unfinished when the build was killed
                left.unlink()
            if not self.resume:
                self._remove_parts()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.temporary or self._done:
            self._remove_parts()
        if not self._stored():
            (self.folder / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in the folder: it is not ours to remove
                self.folder.rmdir()
        self._lock.close()

    def finish(self) -> None:
        """The output is written: the parts go when the block ends."""
        self._done = True

    def has(self, name: str) -> bool:
        """True when there is a part of the tensor, whole or not."""
        return self._path(name).is_file()

    def keep_only(self, names: set[str]) -> None:
        """Remove the parts of all other tensors."""
        wanted = {self._path(name) for name in names}
        for path in self._stored():
            if path not in wanted:
                path.unlink(missing_ok=True)

    def load(self, name: str, key: str) -> Part | None:
        """The part of a tensor if it is whole and has this key; any other part is removed."""
        path = self._path(name)
        with contextlib.suppress(OSError, ValidationError, ValueError):
            part = _read(path)
            if part.header.key == key:
                return part
        path.unlink(missing_ok=True)
        return None

    def save(self, key: str, encoded: EncodedTensor, base_seed: int, seconds: float) -> Part:
        """Store a tensor atomically. Raises OutputError."""
        description = encoded.description
        header = PartHeader(
            key=key, description=description, metrics=encoded.metrics, method=encoded.method, base_seed=base_seed,
            seconds=seconds,
        )  # fmt: skip
        line = header.model_dump_json().encode() + b"\n"
        payload = []
        for suffix, (shape, dtype) in payload_layout(description).items():
            array = np.ascontiguousarray(encoded.arrays[suffix], dtype)
            if array.shape != shape:  # all that follows would be read from the wrong place
                raise RuntimeError(f"{description.stem}.{suffix}: shape {array.shape} encoded, {shape} described")
            payload.append(array.reshape(-1).view(np.uint8).data)
        digest = hashlib.sha256(line)
        for data in payload:
            digest.update(data)
        first = _MAGIC + digest.hexdigest().encode() + b"\n"
        path = self._path(description.name)
        with atomic_output(path) as temporary, temporary.open("wb") as file:
            file.write(first + line)
            for data in payload:
                file.write(data)
        return Part(header, path, len(first) + len(line))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _stored(self) -> list[Path]:
        return [path for path in self.folder.glob(f"*{_SUFFIX}") if path.name != _LOCK]

    def _remove_parts(self) -> None:
        for path in self._stored():
            path.unlink(missing_ok=True)

    def _take_lock(self) -> None:
        if not hold(self._lock.fileno()):
            raise OutputError(
                f"{self.folder}: another build of {self.output.name} is running; wait for it, or give --checkpoint"
            )


def stored_bytes(folder: Path | None) -> int:
    """Bytes that parts of an earlier run take already."""
    if folder is None or not folder.is_dir():
        return 0
    return sum(os.stat(path).st_size for path in folder.glob(f"*{_SUFFIX}"))


def _read(path: Path) -> Part:
    """Read and check a part. Raises ValueError when it is damaged."""
    with path.open("rb") as file:
        first, line = file.readline(200), file.readline(1 << 20)
        digest = hashlib.sha256(line)
        while piece := file.read(_PIECE):
            digest.update(piece)
    if first != _MAGIC + digest.hexdigest().encode() + b"\n":
        raise ValueError(f"{path}: damaged")
    return Part(PartHeader.model_validate_json(line), path, len(first) + len(line))
