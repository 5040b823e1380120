"""Tokens/s of all replies together, by the number of requests at work: `python benchmarks/bench_serve.py MODEL…`.

Each measurement asks for so many greedy replies of `--tokens` tokens to short prompts at once. Models and numbers of
requests take turns; medians are told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import seeddelta
from seeddelta.serve import Limits, Sampling, Scheduler

PROMPTS = ("Once upon a time", "The history of Rome begins", "A good way to learn is", "The sea was calm and")


def measure(scheduler: Scheduler, streams: int, tokens: int) -> float:
    """Total tokens/s of the replies, prompts included in the time."""
    ask = Sampling(temperature=0, min_tokens=tokens)
    begin = time.perf_counter()
    requests = [
        scheduler.submit(scheduler.llm.tokenize(f"{PROMPTS[i % 4]} {i}".encode()), ask, Limits(max_tokens=tokens))
        for i in range(streams)
    ]
    for request in requests:
        list(request)
    return sum(len(request.tokens) for request in requests) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--streams", default="1,4,8")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    options: dict[str, Any] = {"n_threads": arguments.threads, "n_threads_batch": arguments.threads, "verbose": False}
    found: dict[str, dict[int, list[float]]] = {}
    for _ in range(arguments.reps):
        for model in arguments.models:
            llm = seeddelta.load(model, parallel=max(counts), n_ctx=512 * max(counts), flash_attn=True, **options)
            scheduler = Scheduler(llm)
            measure(scheduler, max(counts), 4)  # pages and caches
            for count in counts:
                speed = measure(scheduler, count, arguments.tokens)
                found.setdefault(model.name, {}).setdefault(count, []).append(speed)
            scheduler.close()
            llm.close()
    medians = {
        name: {count: round(statistics.median(speeds), 1) for count, speeds in by_count.items()}
        for name, by_count in found.items()
    }
    print(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
