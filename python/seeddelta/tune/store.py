"""Encoded matrices by rate, kept on disk: what is measured once is built from later, and survives a kill."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.checkpoint import Checkpoint, Part
from ..convert.pipeline import encode_all
from ..convert.plan import Plan, at_rates, make_plan
from ..convert.recipe import Recipe
from ..convert.report import Metrics
from ..gguf import payload, schema
from ..gguf.reader import StoredTensor


class EncodedStore:
    """Parts (build/checkpoint.py) of the targets of a recipe in `folder`/RATE, made when they are first asked for."""

    def __init__(self, recipe: Recipe, folder: Path, *, progress: bool = True) -> None:
        self.recipe = recipe
        self.plan: Plan = make_plan(recipe)
        self._folder = folder
        self._progress = progress
        self._parts: dict[tuple[str, float], Part] = {}

    def encode(self, rates: Iterable[tuple[str, float]]) -> None:
        """Make the parts that are not there yet. Raises what a build raises."""
        missing: dict[float, list[str]] = {}
        for name, rate in rates:
            if (name, rate) not in self._parts and name not in missing.setdefault(rate, []):
                missing[rate].append(name)
        for rate, found in missing.items():
            if not found:
                continue
            names = [name for name in self.plan.targets if name in set(found)]  # the order of the file
            plan = at_rates(self.plan, self.recipe, dict.fromkeys(names, rate))
            with Checkpoint(self.recipe.output, self._folder / f"{rate:g}") as checkpoint:
                parts, _ = encode_all(self.recipe, plan, checkpoint, progress=self._progress)
            self._parts |= {(name, rate): part for name, part in parts.items()}

    def weights(self, name: str, rate: float) -> npt.NDArray[np.float32]:
        """Ŵ of a tensor, float32[rows, n_in]."""
        self.encode([(name, rate)])
        part = self._parts[name, rate]
        description = part.header.description
        layout = payload.payload_layout(description)
        arrays: dict[str, Any] = {}
        for tensor, (suffix, (shape, dtype)) in zip(part.payloads, layout.items(), strict=True):
            data = np.concatenate(list(part.read(tensor)))
            arrays[suffix] = schema.as_unsigned(suffix, data.view(dtype).reshape(shape))
        stored = StoredTensor(name, description, arrays, payload.payload_bytes(description))
        return stored.to_weight().dequantize(0, description.rows)

    def metrics(self, name: str, rate: float) -> Metrics:
        """Errors of a tensor as it is stored."""
        self.encode([(name, rate)])
        return self._parts[name, rate].header.metrics

    def offer(self, rates: Mapping[str, float], folder: Path) -> None:
        """Put the parts of these rates where a build looks for finished ones."""
        self.encode(rates.items())
        folder.mkdir(parents=True, exist_ok=True)
        for name, rate in rates.items():
            part, place = self._parts[name, rate].path, folder / self._parts[name, rate].path.name
            with suppress(FileNotFoundError):
                place.unlink()
            try:
                os.link(part, place)
            except OSError:  # another file system, or one without links
                shutil.copyfile(part, place)
