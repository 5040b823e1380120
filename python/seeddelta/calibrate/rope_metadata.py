"""The rotations of a model's blocks, read from its metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .families import FACTORS, LONG, SHORT, Metadata
from .rope import Rope, Stretch

_SCALINGS = ("none", "linear", "yarn", "longrope")


class RopeMetadata(Metadata):
    """Metadata with the rotations."""

    def original_ctx(self) -> int:
        return int(self.number("rope.scaling.original_context_length", self.number("context_length")))

    def ropes(self, head: int, ctx: int) -> tuple[Rope, Rope]:
        """Of blocks without and with a window."""
        size, base = int(self.number("rope.dimension_count", head)), self.number("rope.freq_base", 10000.0)
        if size > head or size % 2:
            raise self.refuse("in which an even part of a head is rotated")
        stretch, factors = self._stretch(), self._factors(ctx)
        # of a glm4 that sees: text has the same position in all sections
        halves = self.family.halves or (self.architecture == "glm4" and any(self.get("rope.dimension_sections", ())))
        whole = stretch.rope(base, size, factors, halves=halves)
        if self.architecture.startswith("qwen3vl"):
            return (self._interleaved(whole),) * 2
        if self.architecture == "olmo2":
            return whole, Stretch().rope(base, size, factors, halves=halves)
        if self.architecture in ("gemma2", "gemma3"):
            second = self.architecture == "gemma2"
            base = self.number("rope.freq_base_swa", base if second else 10000.0)
            factor = stretch.factor if second else 1.0
            return whole, stretch.rope(base, size, factors, halves=halves, local_factor=factor)
        return whole, whole

    def _interleaved(self, rope: Rope) -> Rope:
        """Pairs turn by time, height and width, which are one in a text; those beyond the three do not turn."""
        sections = np.asarray(self.get("rope.dimension_sections", ()))
        if sections.size < 3 or sections.sum() <= 0:
            raise self.refuse("with rope.dimension_sections")
        pair = np.arange(len(rope.frequency)) % sections.sum()
        return replace(rope, frequency=np.where(pair < 3 * sections[pair % 3], rope.frequency, 0))

    def _factors(self, ctx: int) -> Any:
        name = LONG if ctx > self.original_ctx() else SHORT
        name = FACTORS if FACTORS in self.source.tensors else name
        return self.source.matrix(name).ravel().astype(np.float64) if name in self.source.tensors else None

    def _stretch(self) -> Stretch:
        kind = self.get("rope.scaling.type", "linear")
        if kind not in _SCALINGS:
            raise self.refuse(f"with rope scaling of {', '.join(_SCALINGS)}, not of {kind}")
        magnitude = self.number("rope.scaling.attn_factor", 1.0)
        if kind == "none":
            return Stretch(magnitude=magnitude)
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 0.0)) or 1.0
        if kind != "yarn":
            return Stretch(factor, magnitude=magnitude)
        if self.architecture != "mistral3":  # others leave these to llama.cpp
            return Stretch(factor, True, magnitude, self.original_ctx())
        keys = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_log_multiplier": 0.0}
        return Stretch(
            factor, True, magnitude, self.original_ctx(),
            *(self.number(f"rope.scaling.{key}", default) for key, default in keys.items()),
        )  # fmt: skip
