"""Options of our own attention and of StatePack-KV."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

from ..errors import ConfigError

PackMode = Literal["exact", "binary", "ternary"]
_SPAN = r"(\d+)(?:-(\d+))?"
_OVERRIDE = re.compile(rf"{_SPAN}(?:\.{_SPAN})?=(none|exact|binary|ternary)(?::([0-9.eE+-]+))?")


class Override(NamedTuple):
    """Layers, or of these some KV heads (first_head -1: all of them), that have another mode or budget."""

    first: int
    last: int
    first_head: int
    last_head: int
    mode: PackMode
    budget: float

    def holds(self, layer: int, head: int) -> bool:
        """Whether it is for this KV head of this layer."""
        return self.first <= layer <= self.last and (self.first_head < 0 or self.first_head <= head <= self.last_head)


@dataclass(frozen=True)
class StatePackKV:
    """Attention of single tokens by our kernels, over all keys or over those that bits of the keys choose.

    Beside the KV cache lie, for each key, the signs of its channels (binary) or signs and which channels are large
    (ternary). The query is multiplied with the bits; keys that may matter get exact scores, a softmax among them, and
    their values (docs/statepack.md). Prompts are computed by llama.cpp. Flash attention is on, unless `load` is told
    `flash_attn=False`: then fewer values can be left unread.

    Attributes:
        mode: `ternary`, or `binary`, which finds less; `exact`: all keys, no bits.
        eps: ternary: a channel has a bit when it is above eps times the key's mean magnitude.
        popcount: score with the signs of the query and popcount, not with 6 bits of it.
        refine: exact scores for the chosen keys. False: the score by bits goes into the softmax.
        budget: share of the visible positions that is chosen (up to 1), or their number (above 1).
        mass: choose no more than have this share of the estimated softmax mass; 0: the budget alone.
        sinks: first positions, always attended to.
        recent: last positions, always attended to.
        layers: other modes and budgets by layer, `0-1=exact,12=ternary:0.25`, and by KV head, `12.2=exact,13-15.0-1=
            ternary:0.5`: query heads that share a KV head share its choice. The last that fits holds; `none` is
            `exact`. The heads of a layer are exact or have bits of one mode.
        min_context: positions of the cache up to which attention is exact (llama.cpp rounds them up to 256).
        density: when the choice is a larger share than this, all positions are taken.
        negligible: values are left out whose weight is below this share of the largest in their chunk of 128; 0: none.
        gap: largest relative error of a layer's output, moving mean; a layer above it becomes exact for good.
        gap_every: operations of a layer between comparisons with the exact result; 0: never.
        gamma_chunk: positions that share a gamma, the mean magnitude of their keys; 0: all with binary, none with
            ternary.
        gamma_cap: largest gamma, as a multiple of its moving mean.
        audits: positions a KV head whose bits are compared with their key in every operation.
    Raises ConfigError for a value out of range.
    """

    mode: PackMode = "ternary"
    eps: float = 1.2
    popcount: bool = False
    refine: bool = True
    budget: float = 0.25
    mass: float = 0.0
    sinks: int = 4
    recent: int = 64
    layers: str = "0-1=exact"
    min_context: int = 1024
    density: float = 0.5
    negligible: float = 0.0
    gap: float = 0.3
    gap_every: int = 64
    gamma_chunk: int = 0
    gamma_cap: float = 4.0
    audits: int = 2

    def __post_init__(self) -> None:
        if self.mode not in get_args(PackMode):
            raise ConfigError(f"state pack mode {self.mode!r} is not known; use {', '.join(get_args(PackMode))}")
        ranges = {
            "eps": self.eps >= 0,
            "budget": self.budget > 0,
            "mass": 0 <= self.mass <= 1,
            "sinks": self.sinks >= 0,
            "recent": self.recent >= 0,
            "min_context": self.min_context >= 0,
            "density": 0 < self.density <= 1,
            "negligible": 0 <= self.negligible < 1,
            "gap": self.gap > 0,
            "gap_every": self.gap_every >= 0,
            "gamma_chunk": self.gamma_chunk >= 0,
            "gamma_cap": self.gamma_cap > 0,
            "audits": self.audits >= 0,
        }
        for field in fields(self):
            if not ranges.get(field.name, True):
                raise ConfigError(
                    f"state pack {field.name} {getattr(self, field.name)} is out of range; see StatePackKV"
                )
        self._check_modes(self.overrides())

    def overrides(self) -> list[Override]:
        """`layers`, taken apart. Raises ConfigError for what cannot be read."""
        found: list[Override] = []
        for part in filter(None, self.layers.replace(" ", "").split(",")):
            match = _OVERRIDE.fullmatch(part)
            try:
                if match is None:
                    raise ValueError
                first, last, first_head, last_head, mode, budget = match.groups()
                layers = int(first), int(last or first)
                heads = (-1, -1) if first_head is None else (int(first_head), int(last_head or first_head))
                share = self.budget if budget is None else float(budget)
                if layers[1] < layers[0] or heads[1] < heads[0] or not share > 0:
                    raise ValueError
            except ValueError:
                raise ConfigError(
                    f"state pack layers {part!r} cannot be read; write for example 0-1=exact,12=ternary:0.25, or for "
                    "KV heads of a layer 12.0-1=exact"
                ) from None
            name: PackMode = "exact" if mode in ("none", "exact") else "binary" if mode == "binary" else "ternary"
            found.append(Override(*layers, *heads, name, share))
        return found

    def _check_modes(self, overrides: list[Override]) -> None:
        """Raise ConfigError when heads of a layer have bits of different modes; they are packed together."""
        for layer in (at for one in overrides for at in (one.first, one.last + 1)):
            named = [one for one in overrides if one.holds(layer, max(one.first_head, 0))]
            modes: set[str] = set()
            for head in {0}.union(*({one.first_head, one.last_head + 1} for one in named if one.first_head >= 0)):
                modes.add(next((one.mode for one in reversed(named) if one.holds(layer, head)), self.mode))
            if {"binary", "ternary"} <= modes:
                raise ConfigError(
                    f"state pack layers: KV heads of layer {layer} have binary and ternary bits; those of a layer are "
                    f"exact or of one mode, which {layer}=binary or {layer}=ternary gives to all"
                )
