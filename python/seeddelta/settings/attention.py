"""Settings of our own attention and of StatePack-KV."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from .tree import Flag, Settings

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


class StatePackKV(Settings):
    """Attention of single tokens by our kernels, over all keys or over those that bits of the keys choose.

    Beside the KV cache lie, for each key, the signs of its channels (binary) or signs and which channels are large
    (ternary). The query is multiplied with the bits; keys that may matter get exact scores, a softmax among them, and
    their values (docs/guide/statepack.md). Prompts attend to all keys. Flash attention is on, unless `load` is
    told `flash_attn=False`: then fewer values can be left unread.
    """

    mode: Annotated[
        PackMode,
        Flag(
            names=("--state-pack-kv",),
            metavar="exact|binary|ternary|none",
            bare="ternary",
            off="none",
        ),
    ] = Field(
        default="ternary",
        description="Attention of single tokens by our kernels: over all keys (exact), or over those that bits of the "
        "keys choose (binary finds less than ternary).",
    )
    eps: Annotated[float, Flag()] = Field(
        default=1.2,
        ge=0,
        description="Ternary: a channel has a bit when it is above EPS times the key's mean magnitude.",
    )
    popcount: Annotated[bool, Flag()] = Field(
        default=False, description="Score with the signs of the query and popcount, not with 6 bits of it."
    )
    refine: Annotated[bool, Flag()] = Field(
        default=True, description="Exact scores for the chosen keys; else the score by bits goes into the softmax."
    )
    budget: Annotated[float, Flag(metavar="SHARE|N")] = Field(
        default=0.25, gt=0, description="Share of the visible positions that is chosen (up to 1), or their number."
    )
    mass: Annotated[float, Flag()] = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Choose no more than have this share of the estimated softmax mass; 0: the budget alone.",
    )
    sinks: Annotated[int, Flag()] = Field(default=4, ge=0, description="First positions, always attended to.")
    recent: Annotated[int, Flag()] = Field(default=64, ge=0, description="Last positions, always attended to.")
    layers: Annotated[str, Flag(metavar="A-B[.HEADS]=MODE[:BUDGET],…")] = Field(
        default="0-1=exact",
        examples=["2-3=exact"],
        description="Other modes and budgets by layer, 0-1=exact,12=ternary:0.25, and by KV head, 12.2=exact,"
        "13-15.0-1=ternary:0.5: query heads that share a KV head share its choice. The last that fits holds; none is "
        "exact. The heads of a layer are exact or have bits of one mode.",
    )
    min_context: Annotated[int, Flag()] = Field(
        default=1024, ge=0, description="Positions up to which attention is exact (llama.cpp rounds them up to 256)."
    )
    density: Annotated[float, Flag()] = Field(
        default=0.5, gt=0, le=1, description="When the choice is a larger share than this, all positions are taken."
    )
    negligible: Annotated[float, Flag()] = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Values are left out whose weight is below this share of the largest in their chunk of 128; 0: "
        "none.",
    )
    gap: Annotated[float, Flag()] = Field(
        default=0.3,
        gt=0,
        description="Largest relative error of a layer's output, moving mean; a layer above it becomes exact for good.",
    )
    gap_every: Annotated[int, Flag()] = Field(
        default=64, ge=0, description="Operations of a layer between comparisons with the exact result; 0: never."
    )
    gamma_chunk: Annotated[int, Flag()] = Field(
        default=0,
        ge=0,
        description="Positions that share a gamma, the mean magnitude of their keys; 0: all with binary, none with "
        "ternary.",
    )
    gamma_cap: Annotated[float, Flag()] = Field(
        default=4.0, gt=0, description="Largest gamma, as a multiple of its moving mean."
    )
    audits: Annotated[int, Flag()] = Field(
        default=2, ge=0, description="Positions a KV head whose bits are compared with their key in every operation."
    )

    @model_validator(mode="after")
    def _check_together(self) -> StatePackKV:
        self._check_modes(self.overrides())
        return self

    def overrides(self) -> list[Override]:
        """`layers`, taken apart. Raises ValueError for what cannot be read."""
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
                raise ValueError(
                    f"state pack layers {part!r} cannot be read; write for example 0-1=exact,12=ternary:0.25, or for "
                    "KV heads of a layer 12.0-1=exact"
                ) from None
            name: PackMode = "exact" if mode in ("none", "exact") else "binary" if mode == "binary" else "ternary"
            found.append(Override(*layers, *heads, name, share))
        return found

    def _check_modes(self, overrides: list[Override]) -> None:
        """Raise ValueError when heads of a layer have bits of different modes; they are packed together."""
        for layer in (at for one in overrides for at in (one.first, one.last + 1)):
            named = [one for one in overrides if one.holds(layer, max(one.first_head, 0))]
            modes: set[str] = set()
            for head in {0}.union(*({one.first_head, one.last_head + 1} for one in named if one.first_head >= 0)):
                modes.add(next((one.mode for one in reversed(named) if one.holds(layer, head)), self.mode))
            if {"binary", "ternary"} <= modes:
                raise ValueError(
                    f"state pack layers: KV heads of layer {layer} have binary and ternary bits; those of a layer are "
                    f"exact or of one mode, which {layer}=binary or {layer}=ternary gives to all"
                )
