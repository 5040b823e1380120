"""Quality against size: what is saved, and what it costs in perplexity and KL divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import needs_extra
from ..evaluate.measurements import Series, family, number
from ..gguf import names
from .style import BANDS, FAMILIES, INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PERPLEXITY, _DIVERGENCE = "change of the perplexity, %", "KL divergence, nats"
Side = Literal["left", "right", "center"]
# from a point, in points of print: where its name may stand
_PLACES: tuple[tuple[int, int, Side], ...] = (
    (6, 0, "left"), (-6, 0, "right"), (0, 8, "center"), (0, -8, "center"), (6, 8, "left"), (6, -8, "left"),
    (-6, 8, "right"), (-6, -8, "right"), (0, 16, "center"), (0, -16, "center"), (14, 14, "left"), (-14, 14, "right"),
    (14, -14, "left"), (-14, -14, "right"),
)  # fmt: skip

# a group that has all of these has its own name
_ATTENTION, _MLP = {"attn_q", "attn_k", "attn_v", "attn_output"}, {"ffn_up", "ffn_down"}

Point = tuple[str, str, float, float, float]  # name, family, x, y, standard error of y


def quality_figure(series: Series) -> Figure | None:
    """Perplexity (left) and KL divergence (right) against the megabytes saved (above) and the bits per weight of the
    layers (below), with standard errors. None when nothing was compared.

    Lines join the models of a family that no other one of it beats in both. The axes of quality are logarithmic (linear
    around 0), as broken models are worse by powers of ten.
    """
    base = number(series.base, "file_bytes")
    points = {
        (what, axis): _points(series.models[1:], what, axis, base or 0.0)
        for what in ("perplexity", "divergence")
        for axis in ("saved", "bits")
    }
    measured = [what for what in ("perplexity", "divergence") if any(points[what, axis] for axis in ("saved", "bits"))]
    if not measured:
        return None
    with drawing("quality"), needs_extra("report"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.2 * len(measured), 8.4), layout="constrained")
        panels = figure.subplots(2, len(measured), squeeze=False)
        for column, what in enumerate(measured):
            for row, axis in enumerate(("saved", "bits")):
                _panel(panels[row][column], points[what, axis], what, axis, str(series.base["name"]))
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=10)
        figure.draw_without_rendering()
        for panel in panels.flat:
            _place_names(panel)
    return figure


def _points(models: Sequence[Mapping[str, Any]], what: str, axis: str, base_bytes: float) -> list[Point]:
    found = []
    for model in models:
        bits = number(model, "bits_per_weight")
        x = (base_bytes - float(model["file_bytes"])) / 1e6 if axis == "saved" else bits
        if what == "perplexity":
            y, error = number(model, "difference", "percent"), number(model, "difference", "percent_stderr")
        else:
            y, error = number(model, "divergence", "mean"), number(model, "divergence", "stderr")
        if x is not None and y is not None:
            found.append((str(model["name"]), family(model), x, y, error or 0.0))
    return found


def frontier(points: Sequence[Point], *, more_is_better: bool) -> list[Point]:
    """Points that no other one beats in both x and y (y: less is better), by x."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (-p[2] if more_is_better else p[2], p[3])):
        if not best or point[3] < best[-1][3]:
            best.append(point)
    return best


def _panel(panel: Axes, points: Sequence[Point], what: str, axis: str, base: str) -> None:
    for name, color in FAMILIES.items():
        own = [point for point in points if point[1] == name]
        if not own:
            continue
        edge = frontier(own, more_is_better=axis == "saved")
        panel.plot([p[2] for p in edge], [p[3] for p in edge], color=color, linewidth=1.2, alpha=0.6, zorder=1)
        panel.errorbar(
            [p[2] for p in own], [p[3] for p in own], yerr=[p[4] for p in own], fmt="o", color=color, markersize=5,
            elinewidth=0.9, capsize=2, label=name, zorder=2,
        )  # fmt: skip
    _scale(panel, [point[3] for point in points])
    panel.set_xlabel(f"MB saved of {base}" if axis == "saved" else "bits per weight of the layers, all bytes")
    panel.set_ylabel(_PERPLEXITY if what == "perplexity" else _DIVERGENCE)
    panel.margins(0.08, 0.08)
    panel.grid()
    for name, _, x, y, _ in points:
        panel.annotate(name, (x, y), (6, 0), textcoords="offset points", fontsize=8, va="center", color=INK)


def _scale(panel: Axes, values: Sequence[float]) -> None:
    """Logarithmic, or linear around 0 where a model is no worse than the base; plain where all are alike."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, ScalarFormatter

    positive = [value for value in values if value > 0]
    if not positive or max(positive) < 4 * min(abs(value) for value in values if value):
        return
    if len(positive) == len(values):
        panel.set_yscale("log")
        if max(positive) / min(positive) < 1e3:
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            panel.yaxis.set_major_locator(LogLocator())
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        panel.set_yscale("symlog", linthresh=min(positive), linscale=0.5)
        panel.yaxis.set_major_formatter(ScalarFormatter())


def _place_names(panel: Axes) -> None:
    """Move the names of points off each other and off the points: the first of _PLACES that is free."""
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    names = [child for child in panel.get_children() if isinstance(child, Annotation)]
    dots = [panel.transData.transform(name.xy) for name in names]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in dots]
    for name in names:
        best: tuple[int, int, int, Side, Bbox] | None = None
        for x, y, side in _PLACES:
            name.set_position((x, y))
            name.set_horizontalalignment(side)
            box = name.get_window_extent().padded(1)
            inside = panel.bbox.x0 <= box.x0 and box.x1 <= panel.bbox.x1 + 40
            clashes = sum(box.overlaps(other) for other in taken) + (not inside)
            if best is None or clashes < best[0]:
                best = (clashes, x, y, side, box)
        assert best is not None
        _, x, y, side, box = best
        name.set_position((x, y))
        name.set_horizontalalignment(side)
        taken.append(box)


def target_of(summary: Mapping[str, Any]) -> str | None:
    """What of a model a SeedΔ file converts, by role and layers: `ffn_gate ffn_up, layers 0-9`. None for nothing of its
    layers."""
    tensors = [tensor for tensor in summary["converted"] if tensor["layer"] is not None]
    if not tensors:
        return None
    roles = {str(tensor["role"]) for tensor in tensors}
    whole = {
        name: {role for role in roles if names.in_group(role, name)}
        for name, least in (("attn", _ATTENTION), ("ffn", _MLP))
        if least <= roles
    }
    shown = [*whole, *sorted(roles.difference(*whole.values()))]
    layers = sorted({int(tensor["layer"]) for tensor in tensors})
    starts = [layer for layer in layers if layer - 1 not in layers]
    ends = [layer for layer in layers if layer + 1 not in layers]
    bands = (f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))
    return f"{' '.join(shown)}, layers {','.join(bands)}"


def target_figure(series: Series, targets: Mapping[str, str]) -> Figure | None:
    """Change of the perplexity against the megabytes saved, a line for each role and band of layers.

    `targets` are those of the models by name, of `target_of`. None when there are not two of them with a perplexity.
    """
    points = _points(series.models[1:], "perplexity", "saved", number(series.base, "file_bytes") or 0.0)
    lines: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda one: one[2]):
        if point[0] in targets:
            lines.setdefault(targets[point[0]], []).append(point)
    if len(lines) < 2:
        return None
    with drawing("targets"), needs_extra("report"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 4.8), layout="constrained")
        panel = figure.subplots()
        for turn, (target, own) in enumerate(lines.items()):
            panel.errorbar(
                [p[2] for p in own], [p[3] for p in own], yerr=[p[4] for p in own], fmt="o", capsize=2, markersize=5,
                elinewidth=0.9, linewidth=1.2, label=target, color=BANDS[turn % len(BANDS)],
                linestyle=("-", "--", ":", "-.")[turn // len(BANDS) % 4],
            )  # fmt: skip
        panel.set_xlabel(f"MB saved of {series.base['name']}")
        panel.set_ylabel(_PERPLEXITY)
        panel.grid()
        figure.legend(loc="outside upper left", ncols=2)
    return figure
