"""Bars of memory, and maps of tensors: layer by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import needs_extra
from ..evaluate.measurements import Series, number
from ..gguf.names import order_of
from .style import BANDS, INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = {"anon": "buffers (anon)", "file": "mapped file", "shmem": "view (shmem)"}
_MOST_LABELED = 40  # layers: beyond, the numbers in the cells would touch


def memory_figure(series: Series) -> Figure | None:
    """Memory of each process after generating, by what backs it, and its peak. None when it is not known."""
    found = [
        (str(model["name"]), {part: number(model, "memory", "after_generation", part) for part in (*_PARTS, "peak")})
        for model in series.models
    ]
    found = [(name, parts) for name, parts in found if parts["anon"] is not None]
    if not found:
        return None
    with drawing("memory"), needs_extra("report"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.2, 1.1 + 0.34 * len(found)), layout="constrained")
        panel = figure.subplots()
        at = range(len(found))
        left = [0.0] * len(found)
        for color, (part, label) in zip(BANDS, _PARTS.items(), strict=False):
            widths = [(parts[part] or 0.0) / 1e6 for _, parts in found]
            panel.barh(at, widths, 0.7, left=left, color=color, label=label)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        peaks = [(parts["peak"] or 0.0) / 1e6 for _, parts in found]
        for turn, (total, peak) in enumerate(zip(left, peaks, strict=True)):
            end = (max(total, peak), turn)
            panel.annotate(f"{total:.0f}", end, (4, 0), textcoords="offset points", va="center", fontsize=8)
        if any(peaks):
            panel.plot(peaks, at, "|", color=INK, markersize=12, label="peak")
        panel.set_yticks(at, [name for name, _ in found])
        panel.set_xlabel("MB in memory after 64 tokens")
        panel.margins(x=0.08)
        panel.grid(axis="x")
        panel.invert_yaxis()
        figure.legend(loc="outside upper left", ncols=4, fontsize=8)
    return figure


def tensor_figure(summary: Mapping[str, Any], name: str) -> Figure | None:
    """Map of a SeedΔ file, role by layer: bits per weight (all bytes), and the relative error weighted by importance.

    `summary` is that of `inspection.summarize`. None when no tensor is in a layer.
    """
    tensors = [tensor for tensor in summary["converted"] if tensor["layer"] is not None]
    if not tensors:
        return None
    roles = sorted({tensor["role"] for tensor in tensors}, key=order_of)
    layers = max(tensor["layer"] for tensor in tensors) + 1
    with drawing(f"tensors {name}"), needs_extra("report"):
        import numpy as np
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12.6, 1.6 + 0.52 * len(roles)), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for panel, key, title, colors in zip(
            panels, ("bits_per_weight", "rel_l2_w"), ("bits per weight, all bytes", "relative error, weighted, %"),
            ("Blues", "Oranges"), strict=True,
        ):  # fmt: skip
            values = np.full((len(roles), layers), np.nan)
            for tensor in tensors:
                factor = 100 if key == "rel_l2_w" else 1
                values[roles.index(tensor["role"]), tensor["layer"]] = factor * tensor[key]
            _map(panel, values, title, colors)
            panel.set_yticks([row + 0.5 for row in range(len(roles))], roles)
        panels[1].set_xlabel("layer")
        shown = range(0, layers, 1 + layers // _MOST_LABELED)
        panels[1].set_xticks([layer + 0.5 for layer in shown], [str(layer) for layer in shown])
    return figure


def _map(panel: Axes, values: Any, title: str, colors: str) -> None:
    import numpy as np

    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low == high:
        low, high = low - 0.5, high + 0.5
    span = high - low  # a paler map: the lightest and the darkest colors drown in a light or a dark page
    image = panel.pcolormesh(
        values, cmap=colors, vmin=low - 0.35 * span, vmax=high + 0.15 * span, edgecolor="face", linewidth=0.3
    )
    panel.set_xlim(0, values.shape[1])
    bar = panel.figure.colorbar(image, ax=panel, pad=0.01, aspect=12)
    bar.ax.set_ylim(low, high)
    panel.set_title(title, loc="left")
    panel.invert_yaxis()
    if values.shape[1] > _MOST_LABELED:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.to_rgba(value)
            ink = _ink_on(float(red), float(green), float(blue))
            text = f"{value:.2f}" if value < 9.995 else f"{value:.1f}"
            panel.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6.5, color=ink
            )  # fmt: skip


def _ink_on(red: float, green: float, blue: float) -> str:
    """Black or white, whichever has more contrast (relative luminance, WCAG 2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"
