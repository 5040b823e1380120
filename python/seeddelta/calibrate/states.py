"""Hidden states of a text between two blocks, in a file: float32, for in half precision covariances differ by 1e-4.

Written chunk after chunk and read likewise, so that one chunk is in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .._output import atomic_output, output_error
from ..errors import OutputError

F32 = npt.NDArray[np.float32]


class States:
    """A file of float32 [chunks, ctx, n_embd]."""

    def __init__(self, path: Path, ctx: int, n_embd: int) -> None:
        self.path = path
        self._shape = (ctx, n_embd)

    def read(self, chunk: int) -> F32:
        """float32 [ctx, n_embd] of a chunk. Raises OutputError when the file is gone or too short."""
        count = self._shape[0] * self._shape[1]
        try:
            values = np.fromfile(self.path, np.float32, count, offset=4 * count * chunk)
        except OSError as error:
            raise output_error(self.path, error) from error
        if len(values) != count:
            raise OutputError(f"{self.path}: became shorter; start again")
        return values.reshape(self._shape)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class StatesWriter:
    """Takes the chunks in turn."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def add(self, states: F32) -> None:
        np.ascontiguousarray(states, np.float32).tofile(self._file)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def write_states(path: Path) -> Iterator[StatesWriter]:
    """A writer; the file is there when the block ends without an exception. Raises OutputError."""
    with atomic_output(path) as temporary:
        writer = StatesWriter(temporary)
        try:
            yield writer
        finally:
            writer.close()
