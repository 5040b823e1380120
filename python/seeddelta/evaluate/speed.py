"""Tokens a second, by real decoding: a prompt in batches, and generation one token at a time.

Machines are noisy and drift: when models are compared their measurements take turns (A B A B …), and medians are shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EvaluationError
from ..session.decoder import Decoder, Tokens

if TYPE_CHECKING:
    import llama_cpp

# Fed again and again until there are enough tokens: what is measured must not depend on what a model would say.
TEXT = (
    "In the spring of that year the river rose above the fields, and the people of the valley carried their tools to "
    "the old stone barn on the hill. From there they could see how the water took the fences first, then the road, and "
    "at last the wooden bridge that their grandparents had built. "
)


@dataclass(frozen=True)
class SpeedSample:
    """One measurement, in tokens per second; None for a part that was not asked for."""

    prompt: float | None
    generation: float | None


@dataclass(frozen=True)
class Speed:
    """All measurements of a model at one number of threads and one depth, in the order they were made."""

    threads: int
    n_prompt: int
    n_gen: int
    prompt: tuple[float, ...]
    generation: tuple[float, ...]
    depth: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "depth": self.depth,
            "n_prompt": self.n_prompt,
            "n_gen": self.n_gen,
            "prompt": summary(self.prompt),
            "generation": summary(self.generation),
        }


def summary(values: tuple[float, ...]) -> dict[str, Any] | None:
    """Median, median absolute deviation from it, lowest, highest and all values; None when there are none."""
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "mad": deviation(values),
        "min": min(values),
        "max": max(values),
        "samples": list(values),
    }


def deviation(values: Sequence[float]) -> float:
    """Median absolute deviation from the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def collect(samples: Iterable[SpeedSample], *, threads: int, n_prompt: int, n_gen: int, depth: int = 0) -> Speed:
    """Samples of one model as a Speed."""
    kept = list(samples)
    prompt = tuple(sample.prompt for sample in kept if sample.prompt is not None)
    generation = tuple(sample.generation for sample in kept if sample.generation is not None)
    return Speed(threads, n_prompt, n_gen, prompt, generation, depth)


def measure(
    llm: llama_cpp.Llama,
    *,
    n_prompt: int = 512,
    n_gen: int = 128,
    threads: int | None = None,
    depth: int = 0,
    text: str = TEXT,
) -> SpeedSample:
    """Measure once: `n_prompt` tokens in batches, then `n_gen` tokens one by one, each with `depth` tokens in the KV
    cache at the start.

    The tokens are those of `text`, repeated. Either number may be 0. `threads` stays set on the model. The cache is
    filled before the clock starts, and stays filled: the next measurement at this depth finds it so. (Which tokens
    are in it is of no consequence to the time.)
    Raises EvaluationError when the numbers do not fit the model's context.
    """
    decoder = Decoder(llm, keep=depth)
    if min(n_prompt, n_gen, depth) < 0 or depth + max(n_prompt, n_gen) > decoder.n_ctx:
        raise EvaluationError(
            f"{n_prompt} prompt and {n_gen} generated tokens at depth {depth} do not fit the context of {decoder.n_ctx}"
        )
    if decoder.cached < depth:
        decoder.set_threads(llm.n_threads_batch)
        _decode_all(decoder, _repeated(llm, text, depth)[decoder.cached :], decoder.cached)
    if threads is not None:
        decoder.set_threads(threads)
    prompt = generation = None
    if n_prompt:
        tokens = _repeated(llm, text, n_prompt)
        begin = time.perf_counter()
        _decode_all(decoder, tokens, depth)
        prompt = n_prompt / (time.perf_counter() - begin)
        decoder.truncate(depth)
    if n_gen:
        tokens = _repeated(llm, text, n_gen)
        begin = time.perf_counter()
        for at in range(n_gen):
            decoder.decode(tokens[at : at + 1], depth + at)
        generation = n_gen / (time.perf_counter() - begin)
        decoder.truncate(depth)
    return SpeedSample(prompt, generation)


def _decode_all(decoder: Decoder, tokens: Tokens, position: int) -> None:
    """Tokens in batches from `position` on, with logits for the last one."""
    for at in range(0, len(tokens), decoder.n_batch):
        batch = tokens[at : at + decoder.n_batch]
        last = at + len(batch) == len(tokens)
        decoder.decode(batch, position + at, None if last else slice(0, 0))


def _repeated(llm: llama_cpp.Llama, text: str, count: int) -> Tokens:
    tokens = llm.tokenize(text.encode(), add_bos=True, special=False)
    if not tokens:
        raise EvaluationError("the text to measure with has no tokens; use another one")
    return np.resize(np.asarray(tokens, dtype=np.int32), count)
