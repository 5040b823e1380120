"""Scores of an unfinished evaluation, a record (checkpoint.py) a chunk, so that a killed one goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EvaluationError, OutputError
from ..storage.checkpoint import Store
from .scoring import Float64s


class ChunkLog:
    """Columns of scores, float64[chunks, tokens a chunk] each; with `folder` every finished chunk is on disk, too.

    `identity` is what decides the scores: those of another one are not used. Raises EvaluationError when the folder
    cannot be written.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, Any], columns: tuple[str, ...], tokens: int) -> None:
        self._columns = columns
        self._tokens = tokens
        self._chunks: list[Float64s] = []
        self._key = {"identity": identity, "columns": columns, "tokens": tokens}
        self._store: Store | None = None
        self._open = ExitStack()
        if folder is None:
            return
        busy = "another evaluation writes there; wait for it, or give another --resume DIR"
        try:
            self._store = self._open.enter_context(Store(folder, busy=busy))
        except OutputError as error:
            if not isinstance(error.__cause__, OSError):
                raise EvaluationError(str(error)) from error
            reason = error.__cause__.strerror
            raise EvaluationError(f"{folder}: cannot be written ({reason}); give another --resume DIR") from error
        while record := self._store.load(_name(len(self)), self._key):
            self._chunks.append(record.array("scores"))
        self._store.keep_only(map(_name, range(len(self))))

    def __len__(self) -> int:
        return len(self._chunks)

    def append(self, scores: Mapping[str, Float64s]) -> None:
        """Add a chunk. Raises EvaluationError when the disk refuses."""
        record = np.stack([scores[column] for column in self._columns]).astype("<f8")
        if self._store is not None:
            try:
                self._store.save(_name(len(self)), self._key, {}, [("scores", record)])
            except OutputError as error:
                reason = getattr(error.__cause__, "strerror", None) or str(error)
                raise EvaluationError(f"the scores cannot be written ({reason}); free some space") from error
        self._chunks.append(record)

    def column(self, name: str) -> Float64s:
        """float64[chunks, tokens a chunk]."""
        at = self._columns.index(name)
        return np.array([chunk[at] for chunk in self._chunks]).reshape(-1, self._tokens)

    def close(self) -> None:
        self._open.close()


def _name(chunk: int) -> str:
    return f"{chunk:06d}"


def log_name(identity: Mapping[str, Any]) -> str:
    """Name of an identity in a folder of several."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
