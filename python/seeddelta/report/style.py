"""How figures look: one drawing for a PNG on white and for an SVG that takes the colors of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import IO, TYPE_CHECKING

from ..errors import needs_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID = "#1b1f24", "#d4d8dd"  # replaced by the page's own colors in an SVG
FAMILIES = {"SeedΔ": "#2f7ed8", "llama.cpp": "#d9771f", "dense": "#7d8590"}
BANDS = ("#2f7ed8", "#8cb8ea", "#d9771f", "#7d8590")
_RC = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Settings of matplotlib for a figure; `salt` tells the ids of its SVG from those of other figures on a page."""
    with needs_extra("report"):
        import matplotlib as mpl
    with mpl.rc_context({**_RC, "svg.hashsalt": salt, "svg.fonttype": "path"}):
        yield


def save_png(figure: Figure, file: IO[bytes]) -> None:
    """Write a figure with a white background."""
    figure.savefig(file, format="png", dpi=150, facecolor="white")


def to_svg(figure: Figure, salt: str, label: str) -> str:
    """SVG for the inside of an HTML page: ink and grid in the page's colors, `label` for screen readers."""
    buffer = io.StringIO()
    with drawing(salt):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    width = re.search(r'width="([\d.]+)pt"', text)
    size = f"width: {float(width[1]) / 72 * 96:.0f}px; max-width: 100%; height: auto" if width else ""
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    # glyphs have the same ids in every figure, and the same shapes; a screen reader gets the label
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label, quote=True)}" style="{size}" ', 1)
