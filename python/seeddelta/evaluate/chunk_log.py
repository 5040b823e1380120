"""Scores of an unfinished evaluation on disk, chunk by chunk, so that a killed one goes on where it was.

A file is a line of JSON, which says what was scored, and records of float64, one a chunk. A chunk that was being
written is cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import EvaluationError
from .scoring import Float64s


class ChunkLog:
    """Columns of scores, float64[chunks, tokens a chunk] each; with `path` every finished chunk is on disk, too.

    `identity` is what decides the scores: a file of another one is begun anew. Raises EvaluationError when the folder
    of `path` cannot be written.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any], columns: tuple[str, ...], tokens: int) -> None:
        self._columns = columns
        self._tokens = tokens
        self._chunks: list[Float64s] = []
        self._file: BinaryIO | None = None
        if path is None:
            return
        head = json.dumps({"identity": identity, "columns": columns, "tokens": tokens}, sort_keys=True).encode() + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.is_file() else b""
            size = 8 * len(columns) * tokens
            whole = (len(data) - len(head)) // size if data.startswith(head) else 0
            self._file = path.open("r+b" if whole else "wb")
            if not whole:
                self._file.write(head)
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written ({error.strerror}); give another --resume DIR") from error
        records = np.frombuffer(data, "<f8", whole * len(columns) * tokens, len(head)) if whole else np.empty(0)
        self._chunks = list(records.reshape(whole, len(columns), tokens))
        self._file.truncate(len(head) + whole * size)
        self._file.seek(0, 2)

    def __len__(self) -> int:
        return len(self._chunks)

    def append(self, scores: Mapping[str, Float64s]) -> None:
        """Add a chunk. Raises EvaluationError when the disk refuses."""
        record = np.stack([scores[column] for column in self._columns]).astype("<f8")
        self._chunks.append(record)
        if self._file is not None:
            try:
                self._file.write(record.tobytes())
                self._file.flush()
            except OSError as error:
                raise EvaluationError(f"the scores cannot be written ({error.strerror}); free some space") from error

    def column(self, name: str) -> Float64s:
        """float64[chunks, tokens a chunk]."""
        at = self._columns.index(name)
        return np.array([chunk[at] for chunk in self._chunks]).reshape(-1, self._tokens)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def log_name(identity: Mapping[str, Any]) -> str:
    """Name of the file of an identity in a folder of several."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16] + ".scores"
