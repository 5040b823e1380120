"""Sums of an unfinished capture on disk: one folder, replaced as a whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from seeddelta import _core

from ..errors import OutputError


class Checkpoint:
    """`identity` says what was captured; sums of anything else are not used."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))

    def restore(self, hook: _core.CaptureHook, total: int) -> tuple[int, dict[str, str]]:
        """Fill the hook with stored sums. Returns the chunks done and the representatives; (0, {}) without any."""
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            if state["identity"] != self.identity or state["chunks"] > total:
                return 0, {}
            loaded = [(n, dict(np.load(self.folder / f"{i}.npz"))) for i, n in enumerate(state["inputs"])]
        except (OSError, ValueError, KeyError):
            return 0, {}
        for name, arrays in loaded:
            hook.restore(name, int(arrays["tokens"]), arrays["square"], arrays["norm_square"], arrays.get("covariance"))
        return int(state["chunks"]), dict(state["representatives"])

    def save(self, hook: _core.CaptureHook, chunks: int) -> None:
        """Store the sums. Raises OutputError; an earlier checkpoint stays until this one is whole."""
        fresh = self.folder.with_name(self.folder.name + ".new")
        inputs = sorted(set(hook.representatives.values()))
        state = dict(identity=self.identity, chunks=chunks, inputs=inputs, representatives=dict(hook.representatives))
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            for i, name in enumerate(inputs):
                arrays: dict[str, Any] = dict(
                    tokens=np.int64(hook.tokens(name)),
                    square=hook.square(name),
                    norm_square=hook.norm_square(name),
                )
                if self.identity["covariance"]:
                    arrays["covariance"] = hook.covariance(name)
                np.savez(fresh / f"{i}.npz", **arrays)
            (fresh / "state.json").write_text(json.dumps(state), encoding="utf-8")
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(fresh, self.folder)
        except OSError as error:
            raise OutputError(f"{self.folder}: the checkpoint cannot be written ({error.strerror})") from error

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
