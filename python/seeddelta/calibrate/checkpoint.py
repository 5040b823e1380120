"""Sums of an unfinished capture: a record (seeddelta/checkpoint.py), replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seeddelta import _core

from ..storage.checkpoint import Array, discard_record, read_record, write_record


class Checkpoint:
    """`identity` says what was captured; sums of anything else are not used."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity = identity

    def restore(self, hook: _core.CaptureHook, total: int) -> tuple[int, dict[str, str]]:
        """Fill the hook with stored sums. Returns the chunks done and the representatives.

        (0, {}) and an untouched hook without a file, or when it is damaged, of another capture or of more chunks.
        """
        record = read_record(self.path, self.identity)
        if record is None or record.state["chunks"] > total:
            return 0, {}
        for name in record.state["inputs"]:
            tokens, nonfinite, *counts = (int(n) for n in record.array(f"{name}.counts"))
            square, norm_square = (record.array(f"{name}.{key}") for key in ("square", "norm_square"))
            matrix = record.array(f"{name}.covariance") if self.identity["covariance"] else None
            hook.restore(name, tokens, square, norm_square, np.array(counts, np.int64), matrix, nonfinite)
        return int(record.state["chunks"]), dict(record.state["representatives"])

    def save(self, hook: _core.CaptureHook, chunks: int) -> None:
        """Store the sums. Raises OutputError; an earlier checkpoint stays until this one is whole."""
        inputs = sorted(set(hook.representatives.values()))
        state = dict(chunks=chunks, inputs=inputs, representatives=dict(hook.representatives))

        def arrays() -> Iterator[tuple[str, Array]]:  # one at a time: all covariances are as large as the model
            for name in inputs:
                counts = [hook.tokens(name), hook.nonfinite_tokens(name), *hook.counts(name)]
                yield f"{name}.counts", np.array(counts, np.int64)
                yield f"{name}.square", hook.square(name)
                yield f"{name}.norm_square", hook.norm_square(name)
                if self.identity["covariance"]:
                    yield f"{name}.covariance", hook.covariance(name)

        write_record(self.path, self.identity, state, arrays())

    def discard(self) -> None:
        discard_record(self.path)
