"""Our attention inside llama.cpp: the native hook and its metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
from gguf import GGMLQuantizationType

from .. import _core
from ..errors import ConfigError, UnsupportedLlamaError
from ..settings.attention import StatePackKV
from ..settings.runtime import RuntimeConfig
from ..settings.skipping import EventDriven
from .library import loaded_ggml, unsupported

_CACHE_TYPES = (
    llama_cpp.GGML_TYPE_F16,
    GGMLQuantizationType.BF16,
    llama_cpp.GGML_TYPE_Q8_0,
    llama_cpp.GGML_TYPE_Q4_0,
)
_MODES = {"exact": 0, "binary": 1, "ternary": 2}


class OwnAttention:
    """Attention of one llama context. `hook.set_attention(own.hook)` puts it to work.

    Raises UnsupportedLlamaError when the loaded ggml cannot be understood.
    """

    def __init__(
        self, options: StatePackKV | None = None, event: EventDriven | None = None, *, auto: bool = False
    ) -> None:
        """Attend to all keys, or to what `options` and `event` choose; `auto`: only where that is faster, and without
        an error for models that it does not fit."""
        self.auto = auto
        self.options = options = options or StatePackKV(mode="exact")
        modes = {options.mode, *(one.mode for one in options.overrides())}
        self.chooses = modes != {"exact"} or event is not None
        self._event = event
        limits = {} if event is None else event.limits()
        if event is not None and event.budget_ms is not None:
            limits["budget_ns"] = event.budget_ms * 1e6
        settings = options.core_options()
        of_hook = {name: settings.pop(name) for name in ("min_context", "gap_every", "gap_limit")}
        pack = _core.PackSettings(**settings)
        ggml = loaded_ggml()
        try:
            self.hook = _core.AttentionHook(ggml, pack, layers=options.overrides(), event=limits, **of_hook)
        except RuntimeError as error:
            raise unsupported(f"attention cannot be taken over: {error}") from error
        self._proven = False

    def metrics(self) -> dict[str, int | float]:
        """`attention.*`: nodes met, exact operations of up to 16 tokens a sequence, those of prompts, packed
        operations, and nodes left to llama.cpp since we cannot compute them. `pack.*`: what the bits did, where keys
        are chosen.

        `pack.mode` is 0 exact, 1 binary, 2 ternary. `pack.density` is the share of the visible positions that was
        attended to; `pack.active` the layers that choose; `pack.heads` their KV heads, `pack.heads_own` those with a
        setting of their own, `pack.heads_exact` the exact ones among these (`heads` has what each did); `pack.popcnt`
        the scores by popcount; `pack.recall` the mean softmax mass of what was kept and `pack.gap` the mean relative
        error of the output, of the operations that were compared with the exact result.

        With events: `attention.events` (operations), and `event.*` as in RuntimeHandle.metrics, of layers for gates and
        operations for tokens. `event.windows` are pairs of KV head and window in operations that were not computed
        whole, `event.windows_reused` those that were not computed, `event.age` their mean age in tokens,
        `event.heads_computed` the KV heads (of `event.heads`) that computed more than what always is.
        `event.topk_kept` is the share that was computed of what may be reused, `event.stale_pct` what was reused of
        all, `event.budget_ms_used` the time of the last token's attention, `event.resets` how often a layer's memory
        was dropped, `event.wrong` how often because it was found wrong.
        """
        found = self.hook.counters()
        whole = {name: int(value) for name, value in found.items()}
        compared = max(whole["compared"], 1)
        heads = self.hook.heads()
        own = [
            head["exact"]
            for head in heads
            if head["exact"] or not math.isclose(head["budget"], self.options.budget, rel_tol=1e-6)
        ]
        metrics: dict[str, int | float] = {
            "attention.nodes": whole["nodes"],
            "attention.exact": whole["exact"],
            "attention.prompts": whole["prompts"],
            "attention.packed": whole["packed"],
            "attention.left": whole["left"],
        }
        if not self.chooses:
            return metrics
        metrics |= {
            "pack.enabled": int(self.options.mode != "exact"),
            "pack.mode": _MODES[self.options.mode],
            "pack.density": found["kept"] / found["visible"] if found["visible"] else 1.0,
            "pack.active": whole["layers"],
            "pack.recall": found["recall_sum"] / compared if whole["compared"] else 1.0,
            "pack.gap": found["gap_sum"] / compared,
            "pack.popcnt": whole["popcount"],
            "pack.heads": len(heads),
            "pack.heads_own": len(own),
            "pack.heads_exact": int(sum(own)),
        }
        names = ("visible", "kept", "scored", "values", "dense", "repacks", "rebuilds", "stale", "compared", "disabled")
        metrics |= {f"pack.{name}": whole[name] for name in (*names, "bytes")}
        return metrics if self._event is None else metrics | self._event_metrics()

    def _event_metrics(self) -> dict[str, int | float]:
        found = self.hook.events()
        whole = {name: int(value) for name, value in found.items()}
        reused, windows = whole["seen"] - whole["sent"], whole["seen"] + whole["given"]
        return {
            "attention.events": int(self.hook.counters()["events"]),
            "event.enabled": whole["layers"],
            "event.active": whole["active"],
            "event.calls": whole["operations"],
            "event.full": whole["full"],
            "event.windows": windows,
            "event.windows_reused": reused,
            "event.heads": whole["heads"],
            "event.heads_computed": whole["heads"] - whole["idle"],
            "event.topk_kept": found["sent"] / found["seen"] if reused else 1.0,
            "event.stale_pct": 100 * reused / windows if windows else 0.0,
            "event.age": found["ages"] / reused if reused else 0.0,
            "event.forced": whole["forced"],
            "event.quorum_hits": whole["quorum"],
            "event.budget_hits": whole["budget"],
            "event.budget_ms_used": found["last_ns"] / 1e6,
            "event.gap_checks": whole["checks"],
            "event.gap_failures": whole["failed"],
            "event.quality_gap": found["gap"],
            "event.resets": whole["resets"],
            "event.wrong": whole["wrong"],
            "event.bytes": whole["bytes"],
        }

    def heads(self) -> list[dict[str, float]]:
        """What each KV head of the layers that choose did: `layer`, `head`, `exact` and `budget` (its settings),
        `density` (share of the visible positions attended to), and of the operations that were compared with the exact
        result `compared`, `recall` (mean softmax mass kept) and `gap` (mean relative error of the output)."""
        return [
            {name: head[name] for name in ("layer", "head", "exact", "budget", "compared")}
            | {
                "density": head["kept"] / max(head["visible"], 1),
                "recall": head["recall_sum"] / head["compared"] if head["compared"] else 1.0,
                "gap": head["gap_sum"] / max(head["compared"], 1),
            }
            for head in self.hook.heads()
        ]

    def check(self) -> None:
        """Raise UnsupportedLlamaError when single tokens were decoded without us, or wrongly, or no layer has bits,
        ConfigError when a KV head was named that the model does not have."""
        if self.hook.in_pieces:
            raise unsupported("a graph was computed in pieces, with the attention of a token in two of them")
        if self._proven:
            return
        layer, head = self.hook.missing_head
        if layer >= 0:
            raise ConfigError(f"state pack layers: layer {layer} has no KV head {head} (they count from 0)")
        if self.auto:
            return
        found = self.hook.counters()
        if found["left"] and not found["nodes"]:
            raise unsupported(f"attention of this model cannot be taken over: {self.hook.left_because}")
        if found["exact"] + found["packed"] + found["events"]:
            if self.options.mode != "exact" and not found["layers"] + found["disabled"]:
                raise unsupported("no layer has a cache of keys that can be packed; see the option for layers")
            self._proven = True


def attention_of(config: RuntimeConfig, kwargs: Mapping[str, Any]) -> Callable[[], OwnAttention | None] | None:
    """What makes the attention of each context of a model that `Llama` opens with these keywords; None: llama.cpp's.

    Raises ConfigError for keywords that contradict what was asked for.
    """
    options, event = config.chosen_keys, config.event
    if options is None and config.attention == "llama":
        return None
    if options is None and config.attention == "auto":
        alone = kwargs.get("n_gpu_layers", 0) == 0 and not kwargs.get("op_offload")
        return _automatic if alone else None
    check_arguments(kwargs)
    of_keys = event if event is not None and event.target == "kv" else None
    return lambda: OwnAttention(options, of_keys)


def _automatic() -> OwnAttention | None:
    try:
        return OwnAttention(auto=True)
    except UnsupportedLlamaError as error:
        warnings.warn(f"{error}; llama.cpp computes all attention", RuntimeWarning, stacklevel=2)
        return None


def check_arguments(kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for keywords of `Llama` that contradict attention of ours."""
    if kwargs.get("n_gpu_layers", 0) != 0 or kwargs.get("op_offload"):
        raise ConfigError("n_gpu_layers, op_offload: our attention runs on the CPU; leave them out")
    for name in ("type_k", "type_v"):
        if kwargs.get(name) not in (None, *_CACHE_TYPES):
            raise ConfigError(f"{name}: our attention needs a cache of type F16, BF16, Q8_0 or Q4_0")
    if not kwargs.get("flash_attn", True) and kwargs.get("type_v") not in (None, llama_cpp.GGML_TYPE_F16):
        raise ConfigError("type_v: without flash attention our attention needs a cache of values of type F16")
