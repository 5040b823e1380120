"""rich tables of comparisons. Sizes are in MB (10^6 bytes), speeds in tokens per second, medians."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import needs_extra
from ..evaluate.compare import Comparison, ModelReport
from ..evaluate.kl import QUANTILES
from ..evaluate.measurements import of_comparison
from ..evaluate.memory import Memory
from ..evaluate.speed import Speed
from ..evaluate.table import headings, model_values

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
    series = of_comparison(comparison, names=short_names([model.path for model in models]))
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for model in series.models:
        table.add_column(model["name"], justify="right", overflow="fold")
    values = [model_values(model, series) for model in series.models]
    for heading, cell in headings(series).items():
        if heading != "model" and "tok/s" not in heading:  # the speeds are below, by threads and depth
            table.add_row(heading, *map(cell, values))
    if any(model.divergence is not None for model in models):
        table.add_section()
        for name, share in QUANTILES.items():
            table.add_row(f"KL, {name}", *(_quantile(model, share) for model in models))
        table.add_row("KL, max", *("" if (d := m.divergence) is None else f"{d.kl.max():.4f}" for m in models))
        table.add_row("RMS Δp", *(_rms_delta_p(model) for model in models))
    if any(model.embedding is not None for model in models):
        least = ("" if (e := m.embedding) is None else f"{e.token.min():.4f}" for m in models)
        table.add_row("cosine, token, least", *least)
    for depth, threads in sorted({(speed.depth, speed.threads) for model in models for speed in model.speed}):
        table.add_section()
        _speed_rows(table, models, depth, threads)
    table.add_section()
    table.add_row("  anon / file / shmem", *(_split(model.memory) for model in models))
    table.add_row("  peak", *("-" if (p := m.memory.peak) is None else f"{p / 1e6:.0f}" for m in models))
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


def _split(memory: Memory) -> str:
    parts = (memory.anon, memory.file, memory.shmem)
    return " / ".join("-" if part is None else f"{part / 1e6:.0f}" for part in parts)


def _quantile(model: ModelReport, share: float) -> str:
    found = model.divergence
    return "" if found is None else f"{found.quantile(share).value:.4f} ± {found.quantile(share).stderr:.4f}"


def _rms_delta_p(model: ModelReport) -> str:
    found = model.divergence
    return "" if found is None else f"{found.rms_delta_p.value:.2f}% ± {found.rms_delta_p.stderr:.2f}"
