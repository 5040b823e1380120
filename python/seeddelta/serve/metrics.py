"""Counters of a server as text for Prometheus (its exposition format, version 0.0.4)."""

from __future__ import annotations

import re
from typing import Any

from ..evaluate.memory import read_memory
from .models import Models
from .scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ABOUT = {
    "slots": "Requests that can be at work at once.",
    "slots_active": "Requests at work.",
    "queue": "Requests that wait for a slot.",
    "decode_tokens_per_second": "Tokens of all decoding passes by their seconds.",
    "finished": "Requests that ended, by reason.",
    "requests": "Requests that were taken.",
    "rejected": "Requests refused because too many were waiting.",
    "prompt_tokens": "Tokens of prompts.",
    "reused_tokens": "Tokens of prompts that the cache of a slot had already.",
    "generated_tokens": "Tokens of replies.",
    "decodes": "Decoding passes.",
    "shared_decodes": "Decoding passes of more than one request.",
    "decoded_tokens": "Tokens of decoding passes.",
    "decode_seconds": "Seconds of decoding passes.",
    "queue_seconds": "Seconds that requests waited for a slot.",
    "first_token_seconds": "Seconds from the arrival of requests to their first tokens.",
}
_SUMS = {
    "active_inputs", "aggressive", "blocks", "budget_hits", "calls", "dense_calls", "duty_hits", "events", "exact",
    "experts", "forced", "full", "gap_checks", "gap_failures", "heads_computed", "left", "negative", "nodes",
    "nodes_seen", "nonfinite_events", "packed", "popcnt", "prefetched", "prompts", "quorum_hits", "resets", "reused",
    "rewrites", "rows", "self_tests", "skipped_inputs", "switches", "tokens", "windows", "windows_reused", "wrong",
}  # fmt: skip


def prometheus(models: Models) -> str:
    """All metrics of all models, by label `model`, and the memory of the process."""
    samples: dict[tuple[str, str, str], list[str]] = {}

    def add(name: str, kind: str, value: float, about: str, labels: str = "") -> None:
        samples.setdefault((f"seeddelta_{name}", kind, about), []).append(f"seeddelta_{name}{labels} {value:.12g}")

    for alias, scheduler in models:
        label = f'model="{_escaped(alias)}"'
        for name, value in _gauges(scheduler).items():
            add(name, "gauge", value, _ABOUT[name], f"{{{label}}}")
        counts = dict(vars(scheduler.counters))  # its thread goes on counting
        for reason, count in sorted(counts.pop("ended").items()):
            add("finished_total", "counter", count, _ABOUT["finished"], f'{{{label},reason="{reason}"}}')
        for name, value in counts.items():
            add(f"{name}_total", "counter", value, _ABOUT[name], f"{{{label}}}")
        for name, value in scheduler.between_passes(scheduler.llm.seeddelta.metrics).items():
            about = f"{name} of the run time, as llm.seeddelta.metrics() has it."
            add(f"model_{_plain(name)}", "counter" if _counts_up(name) else "gauge", value, about, f"{{{label}}}")
    for name, size in read_memory().to_dict().items():
        if size is not None:
            add(f"memory_{name}_bytes", "gauge", size, f"Memory of the process: {name}.")
    blocks = (
        [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines] for (name, kind, about), lines in samples.items()
    )
    return "".join("\n".join(lines) + "\n" for lines in blocks)


def _counts_up(name: str) -> bool:
    """Whether a metric of the run time is a sum since loading; the others are states, shares and means."""
    return name.startswith("seeddelta.calls.") or name == "event.heads" or name.rpartition(".")[2] in _SUMS


def _gauges(scheduler: Scheduler) -> dict[str, Any]:
    counters = scheduler.counters
    return {
        "slots": scheduler.parallel,
        "slots_active": scheduler.active,
        "queue": scheduler.waiting,
        "decode_tokens_per_second": counters.decoded_tokens / (counters.decode_seconds or 1.0),
    }


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name.removeprefix("seeddelta."))


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
