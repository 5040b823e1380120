"""Settings of a model at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .attention import StatePackKV
from .patterns import Listed
from .skipping import EventDriven, Kwta, StatePackMLP
from .tree import Flag, Settings


class RuntimeConfig(Settings):
    """Settings of a SeedΔ model at run time."""

    fallback: Annotated[Path | None, Flag(names=("--seeddelta-fallback",), shown=True, metavar="DENSE.GGUF")] = Field(
        default=None,
        description="Original model, from which weights are computed that give NaN or miss the gap. Of the same shapes "
        "and any type that llama.cpp knows; mapped, not loaded.",
    )
    gap: Annotated[float | None, Flag(names=("--seeddelta-gap",), metavar="ERROR")] = Field(
        default=None,
        description="Largest relative error of a tensor; a tensor above it is computed from the fallback from the "
        "start. Default: no limit.",
    )
    dense: Annotated[Listed, Flag(metavar="NAMES")] = Field(
        default=(),
        description="Names of tensors (shell patterns, blk.0.*) that are taken from the fallback from the start.",
    )
    statecells: Annotated[bool, Flag()] = Field(
        default=False,
        description="Refuse a model without StateCells weights (docs/guide/statecells.md), served in any case.",
    )
    proc_sparse: Annotated[bool, Flag()] = Field(
        default=True, description="Serve proc-sparse weights (docs/guide/proc-sparse.md); else they are the fallback's."
    )
    columns: Annotated[Literal["f16"] | None, Flag(panel="Skipping")] = Field(
        default=None,
        description="Store the matrices of an ordinary GGUF model by columns, as float16, so that inputs can be "
        "skipped. That is done when it is loaded. For a SeedΔ file: seeddelta build --layout column.",
    )
    column_targets: Annotated[Listed, Flag(metavar="NAMES", panel="Skipping")] = Field(
        default=("all",), description="Which ones, with commas: ffn, attn, ffn_down, …"
    )
    kwta: Annotated[Kwta | None, Flag(prefix="--kwta-", names=("--kwta",), panel="Skipping")] = Field(
        default=None,
        description="Compute with the inputs of the largest scores only. Needs matrices by columns. On when another "
        "--kwta setting is given.",
    )
    state_pack_mlp: Annotated[StatePackMLP | None, Flag(prefix="--state-pack-mlp-", panel="Skipping")] = Field(
        default=None, description="Skip inputs that are nearly zero; needs matrices by columns."
    )
    event: Annotated[EventDriven | None, Flag(prefix="--event-", names=("--event-driven",), panel="Skipping")] = Field(
        default=None,
        description="Send only inputs that have changed. Needs matrices by columns; or (--event-target kv) attend only "
        "to windows of the KV cache that have. With KWTA, that says how many may be sent. On when another --event "
        "setting is given.",
    )
    zeros: Annotated[bool, Flag(panel="Skipping")] = Field(
        default=True,
        description="Skip inputs of ffn_down that are exactly zero, where it is by columns and the model's MLP has a "
        "(squared) ReLU and no gate: nemotron, arcee, … The results have the same bits.",
    )
    force: Annotated[bool, Flag(panel="Skipping")] = Field(
        default=False,
        description="Keep KWTA, StatePack, events and skipping of zeros on. Default: each is measured while tokens are "
        "generated one by one, and switched off when it saves less than 2% of their time, or when one of the first 8 "
        "checks of events fails.",
    )
    skip_prompt: Annotated[bool, Flag(panel="Skipping")] = Field(
        default=False,
        description="Skip in products of several tokens, too. That gives the quality of skipping (eval does it by "
        "default), not speed: prompts are computed with all columns, and those that are skipped count as 0.",
    )
    attention: Annotated[Literal["auto", "llama", "exact"], Flag(shown=True, panel="Attention")] = Field(
        default="auto",
        description="Who computes the attention. auto: our kernels, and llama.cpp's where ours cannot be used. exact: "
        "our kernels, or an error where they cannot be used. llama: llama.cpp's kernels.",
    )
    state_pack_kv: Annotated[StatePackKV | None, Flag(prefix="--state-pack-kv-", panel="Attention")] = Field(
        default=None, description="Attend only to the keys that a few bits of each key choose. Default: to all keys."
    )

    lora: Annotated[tuple[str, ...], Flag(shown=True, repeat=True, metavar="FILE[:SCALE]")] = Field(
        default=(), description="LoRA adapter (GGUF), added to SeedΔ weights, too; not in exec. May be repeated."
    )

    @model_validator(mode="after")
    def _check_together(self) -> RuntimeConfig:
        if self.state_pack_mlp is not None and self.state_pack_mlp.aggressive and self.columns != "f16":
            raise ValueError(f"aggressive state-pack with columns {self.columns} is out of range; give columns f16")
        if self.attention == "llama" and self.chosen_keys is not None:
            raise ValueError("with attention llama, llama.cpp attends to all keys; leave it out, or the choice of keys")
        if self.kwta is not None and self.kwta.target == "kv":
            if self.event is not None and self.event.target == "kv":
                raise ValueError("kwta and events of kv both choose positions of the KV cache; leave one of them out")
            if self.state_pack_kv is not None and self.state_pack_kv.mode == "exact":
                raise ValueError("kwta of kv chooses keys, and state-pack-kv exact takes all; leave one of them out")
        if self.event is None:
            return self
        if self.event.target == "kv":
            if self.state_pack_kv is not None and self.state_pack_kv.mode != "exact":
                raise ValueError(
                    f"events of attention reuse exact results; with state-pack {self.state_pack_kv.mode} of the KV "
                    "cache there are none. Leave one of them out, or give --state-pack-kv=exact"
                )
            return self
        if self.state_pack_mlp is not None:
            raise ValueError("events and state-pack of the MLP both say which inputs are new; leave one of them out")
        if self.kwta is not None and (self.kwta.block > 1 or self.kwta.renormalize or self.kwta.select == "threshold"):
            raise ValueError(
                "events take how many inputs are kept from kwta, not its block, renorm or thresholds; blocks are "
                "--event-block"
            )
        if self.kwta is not None and self.kwta.gap_tol is not None:
            raise ValueError("events have a gap of their own; leave that of kwta out")
        return self

    @property
    def skips(self) -> bool:
        """Whether any input may be skipped."""
        events = self.event is not None and self.event.target != "kv"
        kwta = self.kwta is not None and self.kwta.target != "kv"
        return kwta or self.state_pack_mlp is not None or events

    @property
    def chosen_keys(self) -> StatePackKV | None:
        """What StatePack, KWTA or events over the KV cache leave out of our attention; None: nothing."""
        if self.kwta is not None and self.kwta.target == "kv":
            pack, budget = self.state_pack_kv or StatePackKV(), self.kwta.k_abs or self.kwta.k
            return pack.model_copy(update={"budget": float(budget)}) if isinstance(budget, (int, float)) else pack
        if self.state_pack_kv is None and self.event is not None and self.event.target == "kv":
            return StatePackKV(mode="exact")
        return self.state_pack_kv

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> RuntimeConfig:
        """A config from what JSON can hold. Raises ConfigError for a setting that is not known or out of range."""
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes: settings that differ from their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)
