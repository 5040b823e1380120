"""Counters of a server as text for Prometheus (its exposition format, version 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..evaluate.memory import read_memory
from .models import Models
from .scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES = {
    "slots": "Requests that can be at work at the same time.",
    "slots_active": "Requests at work.",
    "queue": "Requests that wait for a slot.",
    "decode_tokens_per_second": "Tokens of prompts and replies over the time of their passes, since the start.",
}
_COUNTERS = {
    "requests": "Requests taken.",
    "rejected": "Requests refused because too many were waiting.",
    "prompt_tokens": "Tokens of prompts.",
    "reused_tokens": "Tokens of prompts that a slot's cache had.",
    "generated_tokens": "Tokens of replies.",
    "decodes": "Passes of llama.cpp.",
    "shared_decodes": "Passes of more than one request.",
    "decoded_tokens": "Tokens of all passes.",
    "decode_seconds": "Time of all passes.",
    "queue_seconds": "Time that requests waited for a slot.",
    "first_token_seconds": "Time from a request's arrival to its first token, summed.",
}


def prometheus(models: Models) -> str:
    """All metrics of all models, by label `model`, and the memory of the process."""
    samples: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, kind: str, text: str, value: float, labels: str = "") -> None:
        known = samples.setdefault(f"seeddelta_{name}", (kind, text, []))
        known[2].append(f"seeddelta_{name}{labels} {value:.12g}")

    for alias, scheduler in models:
        label = f'model="{_escaped(alias)}"'
        for name, text in _GAUGES.items():
            add(name, "gauge", text, _gauges(scheduler)[name], f"{{{label}}}")
        for name, text in _COUNTERS.items():
            add(f"{name}_total", "counter", text, getattr(scheduler.counters, name), f"{{{label}}}")
        for reason, count in sorted(scheduler.counters.ended.items()):
            reasons = f'{{{label},reason="{reason}"}}'
            add("finished_total", "counter", "Requests by how they ended.", count, reasons)
        for name, value in scheduler.between_passes(scheduler.llm.seeddelta.metrics).items():
            add(f"model_{_plain(name)}", "gauge", f"{name} of the model's run time.", value, f"{{{label}}}")
    for name, size in read_memory().to_dict().items():
        if size is not None:
            add(f"memory_{name}_bytes", "gauge", f"Memory of the process: {name}.", size)
    return "\n".join(_lines(samples)) + "\n"


def _gauges(scheduler: Scheduler) -> dict[str, Any]:
    counters = scheduler.counters
    return {
        "slots": scheduler.parallel,
        "slots_active": scheduler.active,
        "queue": scheduler.waiting,
        "decode_tokens_per_second": counters.decoded_tokens / (counters.decode_seconds or 1.0),
    }


def _lines(samples: dict[str, tuple[str, str, list[str]]]) -> Iterator[str]:
    for name, (kind, text, lines) in samples.items():
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        yield from lines


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name.removeprefix("seeddelta."))


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
