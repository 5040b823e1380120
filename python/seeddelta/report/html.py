"""What notebooks show of our objects: tables, in HTML without colours of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from .._html import folded, line, table
from ..convert.recipe import Recipe
from ..convert.report import BuildReport
from ..evaluate.compare import Comparison
from ..gguf.reader import SeedDeltaFile
from ..runtime.handle import RuntimeHandle


@singledispatch
def html_of(shown: Any) -> str:
    """HTML of a file, a build, a recipe, a comparison or a loaded model."""
    if hasattr(shown, "seeddelta"):  # a llama; its class needs llama-cpp-python
        return of_handle(shown.seeddelta, shown.model_path)
    raise TypeError(f"{type(shown).__name__} is shown as text")


@html_of.register
def of_file(file: SeedDeltaFile) -> str:
    """A SeedΔ file: totals, and a row a role."""
    from ..inspection.summary import summarize
    from .values import role_rows

    summary = summarize(file)
    count, bits = len(summary["converted"]), summary["bits_per_weight"]
    source = file.metadata.get("seeddelta.source.file", "?")
    return (
        line(f"{file.path.name}: {count} SeedΔ tensors of {bits:.3f} bits a weight, made from {source}")
        + table(("role", "tensors", "weights, M", "MB", "bits", "error, %", "weighted, %"), role_rows(summary))
        + folded("keys", table((), [(key, str(value)) for key, value in summary["keys"].items()], text_columns=2))
    )


@html_of.register
def of_handle(handle: RuntimeHandle, path: str = "") -> str:
    """A loaded model: what is served from the SeedΔ file, and what it did so far."""
    name = f"{path.rpartition('/')[2]}: " if path else ""
    if not handle.enabled:
        return line(f"{name}an ordinary GGUF model, without SeedΔ weights")
    rows = [(key, str(value)) for key, value in handle.metrics().items()]
    text = f"{name}{len(handle.tensors)} SeedΔ weights served, {len(handle.dense)} dense"
    return line(text) + table(("metric", ""), rows)


@html_of.register
def of_build(report: BuildReport) -> str:
    """A build: totals, kept tensors, and every tensor."""
    from ..convert.report import human_bytes

    before, after = human_bytes(report.model_bytes_before), human_bytes(report.model_bytes_after)
    text = (
        f"{len(report.tensors)} tensors, {report.bits_per_weight:.3f} bits a weight; model {before} → {after}, "
        f"{report.seconds:.1f} s"
    )
    rows = []
    for tensor in report.tensors:
        metrics = tensor.metrics
        errors = ("", "") if metrics is None else (f"{100 * metrics.rel_l2:.2f}", f"{100 * metrics.rel_l2_w:.2f}")
        shape = "x".join(map(str, tensor.shape))
        rows.append((tensor.name, tensor.reason or tensor.status, shape, f"{tensor.bits_per_weight:.3f}", *errors))
    columns = ("tensor", "", "shape", "bits", "error, %", "weighted, %")
    return line(text) + folded("tensors", table(columns, rows, text_columns=2))


@html_of.register
def of_comparison(comparison: Comparison) -> str:
    """Models beside each other, one a row."""
    from .measurements import of_comparison as series_of
    from .values import headings, model_values, settings_text

    series = series_of(comparison)
    columns = headings(series)
    rows = [[cell(model_values(model, series)) for cell in columns.values()] for model in series.models]
    return line(settings_text(series)) + table(list(columns), rows, text_columns=2)


@html_of.register
def of_recipe(recipe: Recipe) -> str:
    """The options that were given, or that differ from the defaults."""
    fields = type(recipe).model_fields
    values: Mapping[str, Any] = recipe.model_dump(mode="json")
    shown = [
        (name, _option(value))
        for name, value in values.items()
        if name in recipe.model_fields_set or value != fields[name].get_default()
    ]
    return table(("option", "value"), shown, text_columns=2)


def _option(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
