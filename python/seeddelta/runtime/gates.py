"""From the options of KWTA, StatePack and events to what chooses the inputs of each group of matrices."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ConfigError
from ..gguf.header import Header
from ..settings.patterns import as_values, value_of
from ..settings.runtime import RuntimeConfig

# Of checked tokens: the error of events in one of these switches them off at the place for good.
EARLY_CHECKS = 8

# llama.cpp's architectures with LLM_FFN_RELU or LLM_FFN_RELU_SQR, and those with a ReLU of their own (RWKV)
_RELU = frozenset(
    ("nemotron", "nemotron_h", "nemotron_h_moe", "arcee", "plm", "jais2", "t5", "t5encoder", "rwkv6", "rwkv7")
)

# matrices that read the same input, in the order of llama.cpp's graph
_SHARED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("ffn_gate_shexp", "ffn_up_shexp"))


def input_groups(columns: Iterable[str], rows: Container[str] = ()) -> list[tuple[str, ...]]:
    """Matrices by columns that read the same input together, every other one alone.

    So is each of those that have one of `rows` among them: a product by rows in between leaves no choice to share.
    """
    left = dict.fromkeys(columns)
    groups: list[tuple[str, ...]] = []
    for name in list(left):
        if name not in left:
            continue
        layer, target = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name).groups()  # type: ignore[union-attr]
        shared = next((group for group in _SHARED if target in group), (target,))
        named = [f"blk.{layer}.{other}.weight" for other in shared]
        members = tuple(member for member in named if member in left)
        for member in members:
            del left[member]
        groups += [(member,) for member in members] if any(one in rows for one in named) else [members]
    return groups


def zero_inputs(header: Header, matrices: Iterable[str]) -> frozenset[str]:
    """Those of a model's matrices whose inputs come out of a (squared) ReLU, and so are often exactly 0."""
    if header.metadata.scalar("general.architecture", str, "") not in _RELU:
        return frozenset()
    matrices = set(matrices)
    gated = {name.replace("ffn_gate", "ffn_down") for name in matrices if ".ffn_gate." in name}
    ends = (".ffn_down.weight", ".channel_mix_value.weight")
    return frozenset(name for name in matrices - gated if name.endswith(ends))


@dataclass(frozen=True)
class MadeGate:
    """A gate in the registry, in its order there. `group` are the matrices that share it."""

    group: tuple[str, ...]
    kwta: bool
    pack: bool
    event: bool
    zeros: bool = False


class GateMaker:
    """Makes the gates of one model. Raises ConfigError when the kwta file is not of this model."""

    def __init__(
        self,
        config: RuntimeConfig,
        shapes: Mapping[str, tuple[int, ...]],
        model: str,
        zeros: Container[str] = (),
    ) -> None:
        """`shapes` are those of all matrices by columns; the inputs of those in `zeros` are often exactly 0."""
        self._config, self._zeros = config, zeros
        self._costs = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        self.made: list[MadeGate] = []
        self._file = None
        if config.kwta is not None and config.kwta.file is not None:
            from .skip_file import read_skip_file

            self._file = read_skip_file(config.kwta.file)
            strange = sorted(set(self._file.inputs) - set(shapes))
            if strange:
                raise ConfigError(f"{config.kwta.file}: {strange[0]!r} is not by columns in {model}; make it again")

    def make(self, group: tuple[str, ...], norm: npt.NDArray[np.float32], block: int = 1) -> _core.Gate | None:
        """The gate of matrices that read one input; `norm` float32 [n_in] is that of an input's weights in all.

        `block` inputs, at least, are kept, sent or left out together. None when all inputs are computed with.
        """
        options: dict[str, Any] = self._kwta(group, norm, block) | self._pack(group) | self._event(group, norm, block)
        zeros = self._config.zeros and group[0] in self._zeros and not options.keys() & {"pack", "event"}
        if zeros:
            options["pack"] = "zeros"
        if not options:
            return None
        kwta, pack = options.get("kwta", False), "pack" in options and not zeros
        self.made.append(MadeGate(group, kwta, pack, "event" in options, zeros))
        return _core.Gate(len(norm), prompts=self._config.skip_prompt, **options)

    def _kwta(self, group: tuple[str, ...], norm: npt.NDArray[np.float32], block: int) -> dict[str, Any]:
        kwta = self._config.kwta
        if kwta is None or kwta.target == "kv":
            return {}
        score, threshold = kwta.score, None
        if self._file is not None:
            skip = next((self._file.inputs[name] for name in group if name in self._file.inputs), None)
            if skip is None or value_of(group, {"*": 1.0}, kwta.target) is None:
                return {}
            keep, threshold, score = skip.keep, skip.threshold, self._file.score
            if kwta.select == "threshold" and threshold is None:
                raise ConfigError(f"{kwta.file}: has no threshold for {group[0]!r}; make it again, or use topk")
        else:
            found = value_of(group, {"*": 1.0}, kwta.target) if kwta.k_abs else kwta.keep_of(group)
            if found is None:
                return {}
            keep = found
        if kwta.select == "threshold" and block > 1:
            raise ConfigError(f"{group[0]!r} is proc-sparse and skips blocks, which have no thresholds; use topk")
        events = self._config.event is not None and self._config.event.target != "kv"
        block = 1 if events else max(kwta.block, block)
        units = -(-len(norm) // block)
        options = kwta.core_options() | {"kwta": True, "keep": keep, "keep_count": min(kwta.k_abs, units)}
        options["block"] = block
        if kwta.select == "threshold" and threshold is not None:
            options["threshold"] = threshold
        if kwta.gap_tol is not None:
            options |= {"gap_every": kwta.gap_every, "gap_tolerance": kwta.gap_tol}
        return options | ({"norm": norm} if score == "wina" else {})

    def _pack(self, group: tuple[str, ...]) -> dict[str, Any]:
        pack = self._config.state_pack_mlp
        if pack is None:
            return {}
        eps = value_of(group, as_values(pack.eps), pack.target)
        rho = value_of(group, as_values(pack.rho), pack.target)
        if eps is None or rho is None:
            return {}
        return pack.core_options() | {"pack_eps": eps, "pack_density": rho}

    def _event(self, group: tuple[str, ...], norm: npt.NDArray[np.float32], block: int) -> dict[str, Any]:
        event = self._config.event
        limits = None if event is None else event.limits_of(group)
        if event is None or limits is None:
            return {}
        options = limits | {"early_checks": 0 if self._config.force else EARLY_CHECKS, "block": max(event.block, block)}
        if event.budget_ms is not None:
            every = {name: cost for name, cost in self._costs.items() if value_of((name,), {"*": 1.0}, event.target)}
            share = sum(every[name] for name in group) / sum(every.values())
            options["budget_ns"] = event.budget_ms * 1e6 * share
        score = "wina" if self._config.kwta is None else self._config.kwta.score
        return {"event": options} | ({"norm": norm} if score == "wina" else {})


_PACK = ("pack_tokens", "pack_used", "pack_units", "pack_seen")


def skipping_metrics(
    config: RuntimeConfig, made: Iterable[MadeGate], counts: Iterable[Mapping[str, float]]
) -> dict[str, int | float]:
    """`kwta.*`, `pack.*` and `event.*` from the gates' counters; empty for what is not asked for."""
    made, counts = list(made), list(counts)
    # zeros are told apart
    shown = [count | dict.fromkeys(_PACK, 0) if count["pack_zeros"] else count for count in map(dict, counts)]
    metrics: dict[str, int | float] = {}
    if config.kwta is not None and config.kwta.target != "kv":
        metrics |= _kwta_metrics(shown, sum(gate.kwta for gate in made), config.kwta.temperature)
        if config.kwta.gap_tol is not None:
            metrics |= _tuning_metrics([count for gate, count in zip(made, counts, strict=True) if gate.kwta])
    if config.state_pack_mlp is not None:
        active = [count for gate, count in zip(made, counts, strict=True) if gate.pack]
        metrics |= _pack_metrics(shown, active, config.state_pack_mlp.mode)
    if any(gate.zeros for gate in made):
        zeros = [count for count in counts if count["pack_zeros"]]
        metrics |= {
            "zeros.gates": sum(gate.zeros for gate in made),
            "zeros.calls": int(_total(zeros, "pack_tokens")),
            "zeros.share": 1 - _share(zeros, "pack_units", "pack_seen") if _total(zeros, "pack_seen") else 0.0,
        }
    if config.event is not None and config.event.target != "kv":
        metrics |= _event_metrics(shown, [count for gate, count in zip(made, counts, strict=True) if gate.event])
    return metrics


def _total(counts: Iterable[Mapping[str, float]], name: str) -> float:
    return sum(count[name] for count in counts)


def _share(counts: Iterable[Mapping[str, float]], part: str, whole: str) -> float:
    counts = list(counts)
    return _total(counts, part) / _total(counts, whole) if _total(counts, whole) else 0.0


def _kwta_metrics(counts: list[dict[str, float]], gates: int, temperature: float) -> dict[str, int | float]:
    return {
        "kwta.gates": gates,
        "kwta.calls": int(_total(counts, "kwta_calls")),
        "kwta.keep_ratio": _share(counts, "kwta_kept", "kwta_seen"),
        "kwta.duty_hits": int(_total(counts, "duty_hits")),
        "kwta.passes": _share(counts, "kwta_passes", "kwta_calls"),
        "kwta.temp": temperature,
    }


def _tuning_metrics(tuned: list[Mapping[str, float]]) -> dict[str, int | float]:
    """Of KWTA with a gap: how many are kept and how often it chooses now, means over the gates."""
    return {
        "kwta.k": _total(tuned, "keep") / max(len(tuned), 1),
        "kwta.duty": _total(tuned, "duty") / max(len(tuned), 1),
        "kwta.gap_checks": int(_total(tuned, "kwta_checks")),
        "kwta.tuned": int(_total(tuned, "kwta_tuned")),
        "kwta.quality_gap": max((count["kwta_gap"] for count in tuned), default=0.0),
    }


def _pack_metrics(
    counts: list[dict[str, float]], active: list[Mapping[str, float]], mode: str
) -> dict[str, int | float]:
    return {
        "pack.enabled": len(active),
        "pack.mode": {"binary": 1, "ternary": 2}[mode],
        "pack.calls": int(_total(counts, "pack_tokens")),
        "pack.density": _share(counts, "pack_units", "pack_seen"),
        "pack.active": _share(counts, "pack_used", "pack_tokens"),
        "pack.popcnt": int(_total(counts, "pack_units")),
        "pack.negative": int(_total(counts, "pack_negative")),
        "pack.switches": int(_total(counts, "pack_switches")),
        "pack.aggressive": int(_total(counts, "pack_signs")),
        "pack.gamma": _total(active, "pack_gamma") / len(active) if active else 0.0,
    }


def _event_metrics(counts: list[dict[str, float]], eventful: list[Mapping[str, float]]) -> dict[str, int | float]:
    stale = 1 - _share(counts, "event_sent", "event_seen") if _total(counts, "event_seen") else 0.0
    return {
        "event.enabled": len(eventful),
        "event.active": int(_total(eventful, "event_active")),
        "event.calls": int(_total(counts, "event_calls")),
        "event.full": int(_total(counts, "event_full")),
        "event.topk_kept": _share(counts, "event_sent", "event_seen"),
        "event.stale_pct": 100 * stale,
        "event.forced": int(_total(counts, "event_forced")),
        "event.quorum_hits": int(_total(counts, "event_quorum")),
        "event.budget_hits": int(_total(counts, "event_budget")),
        "event.budget_ms_used": _total(counts, "event_ns") / 1e6,
        "event.gap_checks": int(_total(counts, "event_checks")),
        "event.gap_failures": int(_total(counts, "event_failed")),
        "event.quality_gap": max((count["event_gap"] for count in eventful), default=0.0),
    }
