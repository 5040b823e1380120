"""Values of a text in a file, chunk after chunk, so that one chunk is in memory.

Hidden states between two blocks are float32, for in half precision covariances differ by 1e-4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OutputError
from ..storage.output import atomic_output, output_error


class States:
    """A file of [chunks, ctx, columns]."""

    def __init__(self, path: Path, ctx: int, columns: int, dtype: npt.DTypeLike = np.float32) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self._shape = (ctx, columns)

    def read(self, chunk: int) -> npt.NDArray[Any]:
        """[ctx, columns] of a chunk. Raises OutputError when the file is gone or too short."""
        count = self._shape[0] * self._shape[1]
        try:
            values = np.fromfile(self.path, self.dtype, count, offset=self.dtype.itemsize * count * chunk)
        except OSError as error:
            raise output_error(self.path, error) from error
        if len(values) != count:
            raise OutputError(f"{self.path}: became shorter; start again")
        return values.reshape(self._shape)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class StatesWriter:
    """Takes the chunks in turn."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype = path.open("wb"), dtype

    def add(self, values: npt.NDArray[Any]) -> None:
        np.ascontiguousarray(values, self._dtype).tofile(self._file)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def write_states(states: States) -> Iterator[StatesWriter]:
    """A writer of the file; it is there when the block ends without an exception. Raises OutputError."""
    with atomic_output(states.path) as temporary:
        writer = StatesWriter(temporary, states.dtype)
        try:
            yield writer
        finally:
            writer.close()
