"""rich tables of comparisons. Sizes are in MB (10^6 bytes), speeds in tokens per second, medians."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import needs_extra
from ..evaluate.compare import Comparison, ModelReport
from ..evaluate.kl import QUANTILES
from ..evaluate.memory import Memory
from ..evaluate.speed import Speed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120  # of output that is not a terminal


def make_console(*, stderr: bool = False, width: int = WIDTH) -> Console:
    """Console for tables: as wide as the terminal, or `width` columns in a file or pipe."""
    with needs_extra("report"):
        from rich.console import Console
    # names of files and tensors are shown as they are: no markup, no emoji
    make = partial(Console, stderr=stderr, highlight=False, markup=False, emoji=False)
    console = make()
    return console if console.is_terminal else make(width=width)


def comparison_table(comparison: Comparison, *, title: str | None = None) -> Table:
    """One column a model, one row a measure; rows that nothing was measured for are left out."""
    with needs_extra("report"):
        from rich.table import Table
    models = comparison.models
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in short_names([model.path for model in models]):
        table.add_column(name, justify="right", overflow="fold")
    table.add_row("weights of the blocks", *(model.size.kind for model in models))
    table.add_row("bits per weight of the blocks", *(_number(model.size.bits_per_weight, 2) for model in models))
    table.add_row("  of the whole model", *(_number(model.size.model_bits_per_weight, 2) for model in models))
    table.add_row("file, MB", *(_megabytes(model.size.file_bytes) for model in models))
    if any(model.perplexity is not None for model in models):
        table.add_section()
        table.add_row("perplexity", *(_perplexity(model) for model in models))
        if any(model.difference is not None for model in models):
            table.add_row("  change (paired)", *(_difference(model) for model in models))
        if any(model.divergence is not None for model in models):
            table.add_row("KL divergence, nats", *(_divergence(model) for model in models))
            for name, share in QUANTILES.items():
                table.add_row(f"  {name}", *(_quantile(model, share) for model in models))
            table.add_row("  max", *("" if (d := m.divergence) is None else f"{d.kl.max():.4f}" for m in models))
            table.add_row("same top token", *(_same_top(model) for model in models))
            table.add_row("RMS Δp", *(_rms_delta_p(model) for model in models))
    if any(model.embedding is not None for model in models):
        table.add_section()
        table.add_row("cosine of a token's embeddings", *(_cosine(m, "token_mean") for m in models))
        table.add_row("  least", *("" if (e := m.embedding) is None else f"{e.token.min():.4f}" for m in models))
        table.add_row("cosine of a text's embeddings", *(_cosine(m, "text_mean") for m in models))
    for depth, threads in sorted({(speed.depth, speed.threads) for model in models for speed in model.speed}):
        table.add_section()
        _speed_rows(table, models, depth, threads)
    table.add_section()
    table.add_row("memory in use, MB", *(_megabytes(model.memory.resident) for model in models))
    table.add_row("  anon / file / shmem", *(_split(model.memory) for model in models))
    table.add_row("  peak", *(_megabytes(model.memory.peak) for model in models))
    return table


def _speed_rows(table: Table, models: Sequence[ModelReport], depth: int, threads: int) -> None:
    speeds = [
        next((speed for speed in model.speed if (speed.depth, speed.threads) == (depth, threads)), None)
        for model in models
    ]
    unit = f"tokens/s ({threads} thread{'s' if threads > 1 else ''}{f', depth {depth}' if depth else ''})"
    if any(speed is not None and speed.prompt for speed in speeds):
        table.add_row(f"prompt, {unit}", *("" if s is None else spread(s.prompt) for s in speeds))
    if any(speed is not None and speed.generation for speed in speeds):
        table.add_row(f"generation, {unit}", *("" if s is None else spread(s.generation) for s in speeds))


def speed_table(models: Sequence[tuple[Path, Sequence[Speed]]]) -> Table:
    """One row a model, depth and number of threads: median and range of tokens per second."""
    with needs_extra("report"):
        from rich.table import Table
    table = Table()
    table.add_column("model", overflow="fold")
    deep = any(speed.depth for _, speeds in models for speed in speeds)
    for heading in (*(["depth"] if deep else []), "threads", "prompt, tokens/s", "generation, tokens/s"):
        table.add_column(heading, justify="right")
    names = short_names([path for path, _ in models])
    for name, (_, speeds) in zip(names, models, strict=True):
        for speed in speeds:
            settings = [str(speed.depth), str(speed.threads)] if deep else [str(speed.threads)]
            table.add_row(name, *settings, spread(speed.prompt), spread(speed.generation))
        table.add_section()
    return table


def spread(values: Sequence[float]) -> str:
    """Median and range of measurements, `83.1 (80.9-83.4)`; a dash for none."""
    if not values:
        return "-"
    import statistics

    median = f"{statistics.median(values):.1f}"
    return median if len(values) == 1 else f"{median} ({min(values):.1f}-{max(values):.1f})"


def short_names(paths: Sequence[Path]) -> list[str]:
    """File names, or paths where two files have the same name."""
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _split(memory: Memory) -> str:
    parts = (memory.anon, memory.file, memory.shmem)
    return " / ".join("-" if part is None else f"{part / 1e6:.0f}" for part in parts)


def _perplexity(model: ModelReport) -> str:
    result = model.perplexity
    return "-" if result is None else f"{result.ppl:.2f} ± {result.stderr:.2f}"


def _difference(model: ModelReport) -> str:
    change = model.difference
    return "" if change is None else f"{change.percent:+.2f}% ± {change.percent_stderr:.2f}"


def _divergence(model: ModelReport) -> str:
    found = model.divergence
    return "" if found is None else f"{found.mean:.4f} ± {found.stderr:.4f}"


def _cosine(model: ModelReport, which: str) -> str:
    if model.embedding is None:
        return ""
    found = getattr(model.embedding, which)
    return f"{found.value:.4f} ± {found.stderr:.4f}"


def _quantile(model: ModelReport, share: float) -> str:
    found = model.divergence
    return "" if found is None else f"{found.quantile(share).value:.4f} ± {found.quantile(share).stderr:.4f}"


def _rms_delta_p(model: ModelReport) -> str:
    found = model.divergence
    return "" if found is None else f"{found.rms_delta_p.value:.2f}% ± {found.rms_delta_p.stderr:.2f}"


def _same_top(model: ModelReport) -> str:
    found = model.divergence
    return "" if found is None else f"{found.same_top_percent:.1f}% ± {found.same_top_stderr:.1f}"
