"""The report: one HTML page that needs nothing else, and its figures and numbers as PNG, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import OutputError, needs_extra
from ..evaluate.measurements import Series, family, speeds_of
from ..evaluate.table import COLUMNS, headings, model_values, settings_text
from ..gguf.reader import is_seeddelta, open_seeddelta
from ..gguf.roles import HEADINGS, RoleSums
from ..inspection.summary import describe_base, describe_residual, summarize
from ..storage.output import atomic_output, output_error
from .bars import memory_figure, tensor_figure
from .curves import quality_figure, target_figure, target_of
from .figures import draw_speed
from .style import drawing, save_png, to_svg
from .values import provenance_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = {"SeedΔ": "seeddelta", "llama.cpp": "llama", "dense": "dense"}
_QUALITY = (
    "Above: what is saved on disk, below: bits per weight of the layers. Smaller models are to the right above and to "
    "the left below; lower is better. Bars are standard errors. Lines join the models that no other of their family "
    "beats in both."
)
_TARGETS = "What was converted: roles and layers. Lines join the models of one choice; to the right is more saved."


def write_report(
    series: Sequence[Series],
    folder: str | os.PathLike[str],
    *,
    title: str = "SeedΔ report",
    command: str = "",
    models: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Write `index.html`, `data.json`, `models.csv`, `tensors.csv` and a PNG a figure; return the page's path.

    `series` come from `of_comparison` or `read_measurements`; `models` are SeedΔ files to show the tensors of, beside
    those of the series that are found at their paths. `command` is shown as what made the report.
    Raises OutputError when the folder cannot be written, FormatError for a SeedΔ file that is damaged,
    MissingDependencyError without the extra `report`.
    """
    with needs_extra("report"):
        import jinja2
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(target, error) from error
    summaries, missing = _summaries(series, models)
    page = _Page(target)
    targets = {name: found for name, summary in summaries.items() if (found := target_of(summary)) is not None}
    parts = [page.part(one, f"{turn}-" if len(series) > 1 else "", targets) for turn, one in enumerate(series, 1)]
    maps = [page.tensors(summary, name) for name, summary in summaries.items()]
    context = {
        "title": title,
        "made": f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, seeddelta {__version__}",
        "command": command,
        "parts": parts,
        "maps": maps,
        "missing": missing,
        "provenance": provenance_of(series, summaries),
    }
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    html = environment.from_string(text).render(context)
    data = {"title": title, "command": command, "series": [one.to_dict() for one in series]}
    _write(target / "data.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    _write(target / "models.csv", _csv(["series", *COLUMNS], [
        [one.title, *(model_values(model, one).values())] for one in series for model in one.models
    ]))  # fmt: skip
    _write(target / "tensors.csv", _tensors_csv(summaries))
    _write(target / "index.html", html)
    return target / "index.html"


class _Page:
    """Figures as they are written and as the page has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def part(self, series: Series, prefix: str, targets: Mapping[str, str]) -> dict[str, Any]:
        """A section of the page: table, curves, bars."""
        shown = headings(series)
        rows = []
        for model in series.models:
            values = model_values(model, series)
            rows.append({"style": _STYLES[family(model)], "cells": [shown[key](values) for key in shown]})
        quality = quality_figure(series)
        bars = []
        by_target = target_figure(series, targets)
        if by_target is not None:
            bars.append(self.figure(by_target, f"{prefix}targets", _TARGETS))
        speeds = [(str(model["name"]), speeds_of(model)) for model in series.models]
        if any(speed.prompt or speed.generation for _, found in speeds for speed in found):
            with drawing("speed"):
                figure = draw_speed([(name, found) for name, found in speeds if found])
            bars.append(self.figure(figure, f"{prefix}speed", "Tokens a second, medians and deviations."))
        memory = memory_figure(series)
        if memory is not None:
            caption = "Memory of the process by what backs it; mapped files can be dropped when memory is short."
            bars.append(self.figure(memory, f"{prefix}memory", caption))
        return {
            "title": series.title,
            "note": settings_text(series),
            "headings": list(shown),
            "rows": rows,
            "quality": None if quality is None else self.figure(quality, f"{prefix}quality", _QUALITY),
            "bars": bars,
            "samples": [
                {"name": model["name"], "text": model["sample"]} for model in series.models if model.get("sample")
            ],
        }

    def tensors(self, summary: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Map and table of one SeedΔ file."""
        figure = tensor_figure(summary, name)
        stem = "tensors-" + "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in name)
        svg = "" if figure is None else self.figure(figure, stem, f"bits and errors of {name}, layer by role")["svg"]
        rows = [RoleSums.from_dict(row).cells for row in (*summary["roles"], *summary["totals"])]
        return {"name": name, "svg": svg, "headings": HEADINGS, "roles": rows}

    def figure(self, figure: Figure, stem: str, caption: str) -> dict[str, Any]:
        """Write the PNG; the SVG goes into the page."""
        from markupsafe import Markup

        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what it found stays, for both files
        with atomic_output(self.folder / f"{stem}.png") as temporary, temporary.open("wb") as file:
            save_png(figure, file)
        return {"svg": Markup(to_svg(figure, stem, caption)), "caption": caption}


def _summaries(
    series: Sequence[Series], models: Sequence[str | os.PathLike[str]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Name -> summary of every SeedΔ file that is at hand, and the names of those that are not."""
    found: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    done: set[Path] = set()
    at_hand: set[str] = set()  # by name: a file in the hub's cache is a link to one of another name
    wanted = [(str(model["name"]), Path(model["path"])) for one in series for model in one.models]
    given = [(Path(path).name.removesuffix(".gguf").removesuffix(".seeddelta"), Path(path)) for path in models]
    files = {path.name: path for _, path in given}
    for name, path in (*wanted, *given):
        path = path if path.is_file() else files.get(path.name, path)  # measured elsewhere, given with -m
        if path.is_file() and path.resolve() not in done and is_seeddelta(path):
            done.add(path.resolve())
            at_hand.add(path.name)
            with open_seeddelta(path, check_data=False) as file:
                found[name if name not in found else str(path)] = summarize(file)
    for one in series:
        for model in one.models:
            if family(model) == "SeedΔ" and Path(model["path"]).name not in at_hand and model["name"] not in missing:
                missing.append(str(model["name"]))
    return found, missing


def _tensors_csv(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    keys = ("name", "layer", "role", "source_type", "weights", "payload_bytes", "bits_per_weight", "rate", "rel_l2",
            "rel_l2_w", "base_seed", "unsafe")  # fmt: skip
    rows = [
        [model, *(tensor[key] for key in keys), describe_base(tensor), describe_residual(tensor)]
        for model, summary in summaries.items()
        for tensor in summary["converted"]
    ]
    return _csv(["model", *keys, "base", "residual"], rows)


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; choose another one for the report")
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")
