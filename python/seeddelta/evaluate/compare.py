"""Models side by side: size, perplexity and divergence, speed and memory, each model in its own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import EvaluationError
from ..gguf.hub import model_file
from ..gguf.model_file import read_header
from ..gguf.positions import position_limit
from ..html import line, table
from ..processors import processors
from ..storage.output import check_outputs, reading
from .client import Worker
from .embeddings import EmbeddingResult
from .files import FileSize, file_size
from .kl import DivergenceResult
from .measurements import of_comparison
from .memory import Memory
from .perplexity import PairedDifference, PerplexityResult, paired_difference
from .scoring_plan import Scoring
from .speed import Speed, SpeedSample, collect
from .table import headings, model_values, settings_text

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
MEMORY_PROMPT, MEMORY_TOKENS = 16, 64  # memory is read after a prompt and some generation, when all buffers exist
WARM_PROMPT, WARM_TOKENS = 128, 16  # the round of speed that is not counted: every byte is touched, threads are awake


@dataclass(frozen=True)
class ModelReport:
    """What was measured of one model; parts that were not asked for are None. Memory is in bytes."""

    path: Path
    size: FileSize
    memory_before: Memory
    memory_loaded: Memory
    memory: Memory
    speed: tuple[Speed, ...]
    perplexity: PerplexityResult | None
    difference: PairedDifference | None
    divergence: DivergenceResult | None
    embedding: EmbeddingResult | None
    metrics: Mapping[str, int | float]
    sample: str | None

    def to_dict(self) -> dict[str, Any]:
        difference = None
        if self.difference is not None:
            difference = {
                "log_ratio": self.difference.log_ratio,
                "stderr": self.difference.stderr,
                "percent": self.difference.percent,
                "percent_stderr": self.difference.percent_stderr,
            }
        return {
            "path": str(self.path),
            "kind": self.size.kind,
            "file_bytes": self.size.file_bytes,
            "block_weights": self.size.block_weights,
            "bits_per_weight": self.size.bits_per_weight,
            "weights": self.size.weights,
            "model_bits_per_weight": self.size.model_bits_per_weight,
            "memory": {
                "before_load": self.memory_before.to_dict(),
                "after_load": self.memory_loaded.to_dict(),
                "after_generation": self.memory.to_dict(),
            },
            "speed": [speed.to_dict() for speed in self.speed],
            "perplexity": None if self.perplexity is None else self.perplexity.to_dict(),
            "difference": difference,
            "divergence": None if self.divergence is None else self.divergence.to_dict(),
            "embedding": None if self.embedding is None else self.embedding.to_dict(),
            "metrics": dict(self.metrics),
            "sample": self.sample,
        }


@dataclass(frozen=True)
class Comparison:
    """Reports in the order of the paths. Differences and divergences are from the first model."""

    models: tuple[ModelReport, ...]
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"settings": dict(self.settings), "models": [model.to_dict() for model in self.models]}

    def __str__(self) -> str:
        settings, columns, rows = self._cells()
        lines = [columns, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in lines)
        return "\n".join([settings, *(row.rstrip() for row in shown)])

    def _repr_html_(self) -> str:
        """Models beside each other, one a row."""
        settings, columns, rows = self._cells()
        return line(settings) + table(columns, rows, text_columns=2)

    def _cells(self) -> tuple[str, list[str], list[list[str]]]:
        """What was measured, the headings, and a row for each model."""
        series = of_comparison(self)
        columns = headings(series)
        rows = [[cell(model_values(model, series)) for cell in columns.values()] for model in series.models]
        return settings_text(series), list(columns), rows


def evaluate(
    paths: Paths,
    *,
    text: str | os.PathLike[str] | None = None,
    n_ctx: int = 512,
    chunks: int | None = None,
    threads: int | Sequence[int] | None = None,
    reps: int = 3,
    n_prompt: int = 512,
    n_gen: int = 64,
    depths: Sequence[int] = (0,),
    kl: bool = True,
    kl_base: str | os.PathLike[str] | None = None,
    save_kl_base: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    prompt: str | None = None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare models with the first one: size, KL divergence and perplexity on a text, speed and memory.

    Args:
        paths: GGUF or SeedΔ files, or addresses hf://…, one or several; the first is what the others are compared with.
        text: text file for the perplexity; None: no perplexity. Models without logits (embedding models) get the
            cosines of their embeddings with the first model's instead.
        n_ctx, chunks: as in `perplexity`.
        threads: threads of llama.cpp; several numbers measure the speed at each (the perplexity uses the last).
            Default: all cores.
        reps: measurements of speed, taken in turns among the models, after one that is not counted; 0: none. With 0
            only one model is loaded at a time.
        n_prompt, n_gen: tokens of a measurement of speed; either may be 0.
        depths: tokens in the KV cache before a measurement of speed, measured at each. Filling it takes its time once a
            model, for the largest one.
        kl: measure the divergence of the other models from the first one on the scored tokens. Meanwhile its
            log-probabilities are in a temporary file, 2 bytes per token of the vocabulary and scored position: 25 MB a
            chunk of 512 for a vocabulary of 49 thousand.
        kl_base: file of log-probabilities that llama-perplexity --kl-divergence-base or `save_kl_base` has written: all
            models, the first too, are compared with it. Its text and context take the place of `text` and `n_ctx`.
        save_kl_base: where to write such a file of the first model.
        resume: folder in which the scores of finished chunks are kept, and are taken from when models, text and
            settings are the same; the divergence's file is there, too.
        prompt: text that each model continues greedily by 64 tokens, as a sample; None: no sample.
        options: more keywords of `seeddelta.load` (`fallback`; `config` as a dict): one mapping for the SeedΔ files, or
            one a path.
        progress: draw progress bars with the remaining time on stderr.
    Raises:
        EvaluationError, MissingFileError, and what the loading of a model raises.

    Examples:
        >>> found = seeddelta.evaluate(["model-f16.gguf", "model.seeddelta.gguf"], text="wiki.test.txt", chunks=16)
        >>> print(found.models[1].divergence.mean, found.models[1].perplexity.ppl)
    """
    files = [model_file(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not files:
        raise EvaluationError("no model is given")
    counts = _thread_counts(threads)
    sizes = [file_size(path) for path in files]
    each = _options_of(options, sizes)
    with reading(one for one in (*files, text, kl_base) if one is not None):
        check_outputs([None if save_kl_base is None else Path(save_kl_base)])
    scored = Scoring.plan(
        files, text, n_ctx, chunks, kl=kl, kl_base=kl_base, save_kl_base=save_kl_base, resume=resume, options=each
    )
    _check_depths(depths)
    settings: dict[str, Any] = {
        "text": None if text is None else str(text), "n_ctx": scored.n_ctx if scored is not None else n_ctx,
        "chunks": chunks, "threads": counts, "reps": reps, "n_prompt": n_prompt, "n_gen": n_gen,
        "depths": sorted(set(depths)), "kl": scored is not None and scored.kl,
        "kl_base": None if kl_base is None else str(kl_base),
    }  # fmt: skip
    limit = _position_limit(files)
    n_prompt, n_gen = (max(0, min(n, limit - max(depths))) for n in (n_prompt, n_gen))
    longest = max(depths) + max(n_prompt, n_gen) if reps else 0
    context = max(scored.n_ctx if scored is not None else 0, longest, min(256, limit))
    # pooling_type 0: embeddings of tokens, where a model gives embeddings
    opening = {"n_ctx": context, "n_batch": min(context, 512), "threads": counts[-1], "pooling_type": 0}

    models = list(zip(files, sizes, each, strict=True))
    reports: list[ModelReport] = []
    with nullcontext() if scored is None else scored:
        for group in [models] if reps else [[model] for model in models]:
            with ExitStack() as stack:
                workers = [stack.enter_context(Worker(path, **opening, **more)) for path, _, more in group]
                kinds = [worker.request("outputs") for worker in workers]
                generated = n_gen if "embeddings" not in kinds else 0
                memories = list(map(_memory, workers, kinds))
                speeds = measure_in_turns(workers, counts, reps, n_prompt, generated, progress, settings["depths"])
                for number, (worker, kind) in enumerate(zip(workers, kinds, strict=True)):
                    own = _scores(scored, worker, kind, reports, progress)
                    own["sample"] = None if prompt is None or kind == "embeddings" else _sample(worker, prompt)
                    reports.append(_report(worker, group[number][1], memories[number], speeds[number], own))
    return Comparison(tuple(reports), settings)


def _report(
    worker: Worker, size: FileSize, memory: Memory, speed: tuple[Speed, ...], own: dict[str, Any]
) -> ModelReport:
    return ModelReport(
        path=worker.path, size=size, memory_before=Memory.from_dict(worker.memory_before),
        memory_loaded=Memory.from_dict(worker.memory_loaded), memory=memory, speed=speed,
        metrics=worker.request("metrics"), **own,
    )  # fmt: skip


def _position_limit(files: Sequence[Path]) -> int:
    """Tokens beyond which one of the models has no positions, which would end its process."""
    limits = (position_limit(read_header(path)) for path in files)
    return min((limit for limit in limits if limit is not None), default=sys.maxsize)


def _scores(
    scored: Scoring | None, worker: Worker, kind: str, before: Sequence[ModelReport], progress: bool
) -> dict[str, Any]:
    """Perplexity, its difference from the first model's (or from that of a file of the base's), and divergence; of
    models without logits how near their embeddings are."""
    if scored is None:
        return {"perplexity": None, "difference": None, "divergence": None, "embedding": None}
    if kind == "embeddings":
        near = scored.embed(worker, len(before), progress)
        return {"perplexity": None, "difference": None, "divergence": None, "embedding": near}
    found = scored.score(worker, len(before), progress)
    base = found.base if found.base is not None else before[0].perplexity if before else None
    difference = None if base is None else paired_difference(found.perplexity, base)
    own = {"perplexity": found.perplexity, "difference": difference, "divergence": found.divergence}
    return own | {"embedding": None}


def measure_in_turns(
    workers: Sequence[Worker],
    threads: Iterable[int],
    reps: int,
    n_prompt: int,
    n_gen: int,
    progress: bool,
    depths: Sequence[int] = (0,),
) -> list[tuple[Speed, ...]]:
    """Speed of each worker's model at each depth and number of threads. Only one process computes at a time.

    A repetition measures every model once at every number of threads, so slow changes of the machine hit all alike. All
    repetitions are made at one depth before the next, so that a cache is filled once.
    """
    from ..progress import tqdm

    counts = list(threads)
    if not reps:
        return [()] * len(workers)
    samples: dict[tuple[int, int, int], list[SpeedSample]] = {}
    turns = [(depth, rep, count) for depth in depths for rep in range(-1, reps) for count in counts]
    with tqdm(total=len(turns) * len(workers), desc="speed", disable=not progress) as bar:
        for depth, rep, count in turns:
            for index, worker in enumerate(workers):
                bar.set_postfix_str(worker.path.name)
                prompt, gen = (n_prompt, n_gen) if rep >= 0 else (min(n_prompt, WARM_PROMPT), min(n_gen, WARM_TOKENS))
                sample = worker.request("speed", n_prompt=prompt, n_gen=gen, threads=count, depth=depth)
                if rep >= 0:
                    samples.setdefault((index, depth, count), []).append(SpeedSample(**sample))
                bar.update()
    return [
        tuple(
            collect(samples[index, depth, count], threads=count, n_prompt=n_prompt, n_gen=n_gen, depth=depth)
            for depth in depths
            for count in counts
        )
        for index in range(len(workers))
    ]


def _options_of(
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, sizes: Sequence[FileSize]
) -> list[dict[str, Any]]:
    """Keywords of `seeddelta.load` for each model."""
    if options is None or isinstance(options, Mapping):
        return [dict(options or {}) if size.kind.startswith("SeedΔ") else {} for size in sizes]
    if len(options) != len(sizes):
        raise EvaluationError(f"{len(options)} sets of options for {len(sizes)} models; give one a model")
    return [dict(one) for one in options]


def _check_depths(depths: Sequence[int]) -> None:
    if not depths or min(depths) < 0:
        raise EvaluationError(f"depths {list(depths)} must be 0 or more")


def bench(
    paths: Paths,
    *,
    threads: int | Sequence[int] | None = None,
    reps: int = 5,
    n_prompt: int = 512,
    n_gen: int = 128,
    depths: Sequence[int] = (0,),
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    progress: bool = False,
) -> Comparison:
    """Measure the speed of models: prompts and generation, models and thread counts taking turns.

    Args:
        paths: GGUF or SeedΔ files, or addresses hf://…, one or several.
        threads: number of threads, or several to measure each. Default: all cores.
        reps: measurements, after one that is not counted.
        n_prompt, n_gen: tokens of the prompt and to generate; either may be 0.
        depths, options, progress: as of `evaluate`.
    Raises:
        EvaluationError, MissingFileError, and what the loading of a model raises.

    Examples:
        >>> found = seeddelta.bench(["model-Q4_K_M.gguf", "model.seeddelta.gguf"], threads=[1, 2])
        >>> [(model.path.name, [speed.generation for speed in model.speed]) for model in found.models]
    """
    return evaluate(
        paths, threads=threads, reps=reps, n_prompt=n_prompt, n_gen=n_gen, depths=depths, options=options,
        progress=progress,
    )  # fmt: skip


def _thread_counts(threads: int | Sequence[int] | None) -> list[int]:
    counts = [processors()] if threads is None else [threads] if isinstance(threads, int) else list(threads)
    if not counts or min(counts) < 1:
        raise EvaluationError(f"threads {threads!r} must be 1 or more")
    return counts


def _memory(worker: Worker, kind: str) -> Memory:
    worker.request("speed", n_prompt=MEMORY_PROMPT, n_gen=MEMORY_TOKENS if kind == "logits" else 0)
    return Memory.from_dict(worker.request("memory"))


def _sample(worker: Worker, prompt: str) -> str:
    return str(worker.request("generate", prompt=prompt, max_tokens=64)["text"])
