"""Sums of an unfinished capture on disk: one NumPy archive, replaced as a whole."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from seeddelta import _core

from ..gguf.writer import atomic_output


class Checkpoint:
    """`identity` says what was captured; sums of anything else are not used."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))

    def restore(self, hook: _core.CaptureHook, total: int) -> tuple[int, dict[str, str]]:
        """Fill the hook with stored sums. Returns the chunks done and the representatives.

        (0, {}) and an untouched hook without a file, or when it is damaged, of another capture or of more chunks.
        """
        try:
            with np.load(self.path) as archive:
                state = json.loads(str(archive["state"]))
                if state["identity"] != self.identity or state["chunks"] > total:
                    return 0, {}
                sums = [
                    {key: archive[f"{i}.{key}"] for key in ("counts", "square", "norm_square")}
                    for i in range(len(state["inputs"]))
                ]
                matrices = [archive.get(f"{i}.covariance") for i in range(len(sums))]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return 0, {}
        for name, arrays, matrix in zip(state["inputs"], sums, matrices, strict=True):
            tokens, nonfinite, *counts = (int(n) for n in arrays["counts"])
            hook.restore(
                name, tokens, arrays["square"], arrays["norm_square"], np.array(counts, np.int64), matrix, nonfinite
            )
        return int(state["chunks"]), dict(state["representatives"])

    def save(self, hook: _core.CaptureHook, chunks: int) -> None:
        """Store the sums. Raises OutputError; an earlier checkpoint stays until this one is whole."""
        inputs = sorted(set(hook.representatives.values()))
        state = dict(identity=self.identity, chunks=chunks, inputs=inputs, representatives=dict(hook.representatives))
        with (
            atomic_output(self.path) as temporary,
            zipfile.ZipFile(temporary, "w") as archive,
        ):

            def add(key: str, array: Any) -> None:  # one at a time: all covariances together are as large as the model
                with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)

            add("state", json.dumps(state))
            for i, name in enumerate(inputs):
                counts = [hook.tokens(name), hook.nonfinite_tokens(name), *hook.counts(name)]
                add(f"{i}.counts", np.array(counts, np.int64))
                add(f"{i}.square", hook.square(name))
                add(f"{i}.norm_square", hook.norm_square(name))
                if self.identity["covariance"]:
                    add(f"{i}.covariance", hook.covariance(name))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
