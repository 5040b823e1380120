"""Counters of a server as text for Prometheus (its exposition format, version 0.0.4)."""

from __future__ import annotations

import re
from typing import Any

from ..evaluate.memory import read_memory
from .models import Models
from .scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus(models: Models) -> str:
    """All metrics of all models, by label `model`, and the memory of the process."""
    samples: dict[tuple[str, str], list[str]] = {}

    def add(name: str, kind: str, value: float, labels: str = "") -> None:
        samples.setdefault((f"seeddelta_{name}", kind), []).append(f"seeddelta_{name}{labels} {value:.12g}")

    for alias, scheduler in models:
        label = f'model="{_escaped(alias)}"'
        for name, value in _gauges(scheduler).items():
            add(name, "gauge", value, f"{{{label}}}")
        counts = dict(vars(scheduler.counters))  # its thread goes on counting
        for reason, count in sorted(counts.pop("ended").items()):
            add("finished_total", "counter", count, f'{{{label},reason="{reason}"}}')
        for name, value in counts.items():
            add(f"{name}_total", "counter", value, f"{{{label}}}")
        for name, value in scheduler.between_passes(scheduler.llm.seeddelta.metrics).items():
            add(f"model_{_plain(name)}", "gauge", value, f"{{{label}}}")
    for name, size in read_memory().to_dict().items():
        if size is not None:
            add(f"memory_{name}_bytes", "gauge", size)
    return "".join("\n".join([f"# TYPE {name} {kind}", *lines]) + "\n" for (name, kind), lines in samples.items())


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
