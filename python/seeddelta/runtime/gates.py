"""From the options of KWTA, StatePack and events to what chooses the inputs of each group of matrices."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ConfigError, NotAvailableError
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
        if config.state_pack_mlp is not None and config.state_pack_mlp.aggressive and not _core.ablations:
            raise NotAvailableError("aggressive state-pack is left out of this build (SEEDDELTA_ABLATIONS=OFF)")
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

    def make(self, group: tuple[str, ...], norm: npt.NDArray[np.float32]) -> _core.Gate | None:
        """The gate of matrices that read one input; `norm` float32 [n_in] is that of an input's weights in all.

        None when all inputs are computed with.
        """
        options: dict[str, Any] = self._kwta(group, norm) | self._pack(group) | self._event(group, norm)
        zeros = self._config.zeros and group[0] in self._zeros and not options.keys() & {"pack", "event"}
        if zeros:
            options["pack"] = "zeros"
        if not options:
            return None
        kwta, pack = options.get("kwta", False), "pack" in options and not zeros
        self.made.append(MadeGate(group, kwta, pack, "event" in options, zeros))
        return _core.Gate(len(norm), prompts=self._config.skip_prompt, **options)

    def _kwta(self, group: tuple[str, ...], norm: npt.NDArray[np.float32]) -> dict[str, Any]:
        kwta = self._config.kwta
        if kwta is None:
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
        n_in = len(norm)
        units = -(-n_in // kwta.block)
        options = kwta.core_options() | {"kwta": True, "keep": keep, "keep_count": min(kwta.k_abs, units)}
        if kwta.select == "threshold" and threshold is not None:
            options["threshold"] = threshold
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

    def _event(self, group: tuple[str, ...], norm: npt.NDArray[np.float32]) -> dict[str, Any]:
        event = self._config.event
        if event is None or event.target == "kv" or value_of(group, {"*": 1.0}, event.target) is None:
            return {}
        options = event.limits() | {"early_checks": 0 if self._config.force else EARLY_CHECKS}
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

    def total(name: str) -> float:
        zeros = name in _PACK  # are told apart
        return sum(count[name] for count in counts if not (zeros and count["pack_zeros"]))

    def share(part: str, whole: str) -> float:
        return total(part) / total(whole) if total(whole) else 0.0

    metrics: dict[str, int | float] = {}
    if config.kwta is not None:
        metrics |= {
            "kwta.gates": sum(gate.kwta for gate in made),
            "kwta.calls": int(total("kwta_calls")),
            "kwta.keep_ratio": share("kwta_kept", "kwta_seen"),
            "kwta.duty_hits": int(total("duty_hits")),
            "kwta.passes": share("kwta_passes", "kwta_calls"),
            "kwta.temp": config.kwta.temperature,
        }
    if config.state_pack_mlp is not None:
        active = [count for gate, count in zip(made, counts, strict=True) if gate.pack]
        metrics |= {
            "pack.enabled": len(active),
            "pack.mode": {"binary": 1, "ternary": 2}[config.state_pack_mlp.mode],
            "pack.calls": int(total("pack_tokens")),
            "pack.density": share("pack_units", "pack_seen"),
            "pack.active": share("pack_used", "pack_tokens"),
            "pack.popcnt": int(total("pack_units")),
            "pack.negative": int(total("pack_negative")),
            "pack.switches": int(total("pack_switches")),
            "pack.aggressive": int(total("pack_signs")),
            "pack.gamma": sum(count["pack_gamma"] for count in active) / len(active) if active else 0.0,
        }
    if any(gate.zeros for gate in made):
        calls = {name: sum(count[name] for count in counts if count["pack_zeros"]) for name in _PACK}
        metrics |= {
            "zeros.gates": sum(gate.zeros for gate in made),
            "zeros.calls": int(calls["pack_tokens"]),
            "zeros.share": 1 - calls["pack_units"] / calls["pack_seen"] if calls["pack_seen"] else 0.0,
        }
    if config.event is not None and config.event.target != "kv":
        eventful = [count for gate, count in zip(made, counts, strict=True) if gate.event]
        gaps = [count["event_gap"] for count in eventful]
        metrics |= {
            "event.enabled": len(eventful),
            "event.active": sum(int(count["event_active"]) for count in eventful),
            "event.calls": int(total("event_calls")),
            "event.full": int(total("event_full")),
            "event.topk_kept": share("event_sent", "event_seen"),
            "event.stale_pct": 100 * (1 - share("event_sent", "event_seen")) if total("event_seen") else 0.0,
            "event.forced": int(total("event_forced")),
            "event.quorum_hits": int(total("event_quorum")),
            "event.budget_hits": int(total("event_budget")),
            "event.budget_ms_used": total("event_ns") / 1e6,
            "event.gap_checks": int(total("event_checks")),
            "event.gap_failures": int(total("event_failed")),
            "event.quality_gap": max(gaps, default=0.0),
        }
    return metrics
