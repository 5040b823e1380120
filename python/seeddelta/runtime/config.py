"""What the run time can be told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..errors import ConfigError
from .skipping import EventDriven, Kwta, StatePackMLP, require
from .state_pack import StatePackKV


@dataclass(frozen=True)
class RuntimeConfig:
    """Options of a SeedΔ model at run time.

    Attributes:
        fallback: dense GGUF model of the same shapes (any type that llama.cpp knows), mapped, not loaded. A weight
            whose product is not finite is computed from it from then on.
        gap: largest relative error of a tensor, as the file has it from the builder, whose gap is about the same figure
            (`error` of the norms in gguf/schema.py); one above it is dense from the start (needs `fallback`). None:
            whatever the file has is used.
        statecells: the model must have weights that are a codebook alone. They are served in any case; this tells a
            model that has none from one that has (docs/statecells.md).
        proc_sparse: False takes proc-sparse weights (docs/proc-sparse.md) from the fallback (needs `fallback`).
        columns: store the matrices of an ordinary GGUF model by columns when it is loaded, as `f16` or as `i8` (8 bits
            and a scale a column), so that inputs can be skipped. None: llama.cpp computes with them as they are. A
            SeedΔ file has matrices by columns when it is built so (`Recipe.layout`, `column_tensor`).
        column_targets: matrices that are; names and groups of gguf/names.py.
        kwta: skip the inputs with the smallest scores; needs matrices by columns.
        state_pack_mlp: skip inputs that are nearly zero; needs matrices by columns.
        event: send only what has changed; needs matrices by columns, unless its target is `kv`, attention. With KWTA,
            that says how many may be sent to matrices.
        skip_prompt: skip in products of several tokens, too. That gives the quality of skipping (`seeddelta eval`), not
            speed: prompts are computed with all columns, and those that are skipped count as 0.
        state_pack_kv: attention of single tokens by our kernels; None: by llama.cpp.
        dense: names of tensors (shell patterns, `blk.0.*`) that are dense from the start (needs `fallback`).
    """

    fallback: str | os.PathLike[str] | None = None
    gap: float | None = None
    dense: tuple[str, ...] = ()
    statecells: bool = False
    proc_sparse: bool = True
    columns: Literal["f16", "i8"] | None = None
    column_targets: tuple[str, ...] = ("all",)
    kwta: Kwta | None = None
    state_pack_mlp: StatePackMLP | None = None
    event: EventDriven | None = None
    skip_prompt: bool = False
    state_pack_kv: StatePackKV | None = None

    def __post_init__(self) -> None:
        require(self.columns in (None, "f16", "i8"), f"columns {self.columns!r}", "f16 or i8")
        if self.state_pack_mlp is not None and self.state_pack_mlp.aggressive:
            require(self.columns == "f16", f"aggressive state-pack with columns {self.columns}", "columns f16")
        if self.event is None:
            return
        if self.event.target == "kv":
            if self.state_pack_kv is not None and self.state_pack_kv.mode != "exact":
                raise ConfigError(
                    f"events of attention reuse exact results; with state-pack {self.state_pack_kv.mode} of the KV "
                    "cache there are none. Leave one of them out, or give --state-pack=exact"
                )
            return
        if self.state_pack_mlp is not None:
            raise ConfigError("events and state-pack of the MLP both say which inputs are new; leave one of them out")
        if self.kwta is not None and (self.kwta.block > 1 or self.kwta.renormalise or self.kwta.select == "threshold"):
            raise ConfigError("events take how many inputs are kept from kwta, not its block, renorm or thresholds")

    @property
    def skips(self) -> bool:
        """Whether any input may be skipped."""
        events = self.event is not None and self.event.target != "kv"
        return self.kwta is not None or self.state_pack_mlp is not None or events

    @property
    def attention(self) -> StatePackKV | None:
        """Options of our attention, which events over the KV cache need; None: attention is llama.cpp's."""
        if self.state_pack_kv is None and self.event is not None and self.event.target == "kv":
            return StatePackKV("exact")
        return self.state_pack_kv

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> RuntimeConfig:
        """A config from what JSON can hold: lists for tuples, mappings for `kwta`, `state_pack_mlp`, `event`,
        `state_pack_kv`.

        Raises ConfigError for an option that is not known or out of range.
        """
        known = {field.name for field in fields(cls)}
        given = dict(options)
        strange = sorted(set(given) - known)
        if strange:
            choices = ", ".join(sorted(known))
            raise ConfigError(f"option {strange[0]!r} of the run time is not known; choose from {choices}")
        made_of: dict[str, Any] = {
            "kwta": Kwta,
            "state_pack_mlp": StatePackMLP,
            "event": EventDriven,
            "state_pack_kv": StatePackKV,
        }
        for name, made in made_of.items():
            if isinstance(given.get(name), Mapping):
                try:
                    given[name] = made(**given[name])
                except TypeError as error:
                    raise ConfigError(f"options of {name}: {error}") from error
        for name in ("dense", "column_targets"):
            if name in given:
                given[name] = tuple(given[name])
        return cls(**given)
