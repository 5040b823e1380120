"""Figures of speed, with matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import EvaluationError, needs_extra
from ..evaluate.speed import Speed, deviation
from .style import BANDS, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = ("prompt", "generation")


def draw_speed(models: Sequence[tuple[str, Sequence[Speed]]], *, title: str | None = None) -> Figure:
    """Bars of tokens per second: medians, with the median absolute deviation as error bars.

    `models` are names and their measurements. One row of panels for prompts and one for generation, as far as they were
    measured, one column a depth; one bar a number of threads. Raises EvaluationError when there is nothing to draw.
    """
    with needs_extra("report"):
        from matplotlib.figure import Figure

    speeds = [speed for _, found in models for speed in found]
    depths, threads = sorted({speed.depth for speed in speeds}), sorted({speed.threads for speed in speeds})
    parts = [part for part in _PARTS if any(getattr(speed, part) for speed in speeds)]
    if not parts:
        raise EvaluationError("no speed was measured: there is nothing to draw")
    size = (1.5 + 4 * len(depths), 0.8 + len(parts) * (0.9 + 0.16 * len(models) * (1 + len(threads))))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(parts), len(depths), squeeze=False, sharey=True)
    height = 0.8 / len(threads)
    for row, part in enumerate(parts):
        for column, depth in enumerate(depths):
            panel = panels[row][column]
            for turn, count in enumerate(threads):
                bars = [
                    (at + (turn - (len(threads) - 1) / 2) * height, getattr(speed, part))
                    for at, (_, found) in enumerate(models)
                    for speed in found
                    if (speed.depth, speed.threads) == (depth, count) and getattr(speed, part)
                ]
                panel.barh(
                    [at for at, _ in bars],
                    [statistics.median(values) for _, values in bars],
                    height,
                    xerr=[deviation(values) for _, values in bars],
                    label=f"{count} thread{'s' if count > 1 else ''}",
                    color=BANDS[turn % len(BANDS)],
                    error_kw={"linewidth": 0.8, "capsize": 1.5, "ecolor": INK},
                )
            panel.set_yticks(range(len(models)), [name for name, _ in models])
            panel.set_title(f"{part}{f', {depth} tokens before it' if depth else ''}", fontsize="medium")
            panel.set_xlabel("tokens per second")
            panel.grid(axis="x", linewidth=0.4)
            panel.set_axisbelow(True)
    panels[0][0].invert_yaxis()
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(threads), fontsize="small")
    if title is not None:
        figure.suptitle(title, fontsize="medium")
    return figure
