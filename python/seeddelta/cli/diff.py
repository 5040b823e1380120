"""`seeddelta diff`: two model files beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ..settings.files import DiffSettings
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from ..inspection import Difference


@from_settings(DiffSettings)
def command(settings: DiffSettings) -> None:
    """Compare two files: keys, recipe, types, sizes and the weights themselves.

    The difference of the weights is ‖A−B‖/‖A‖. The exit code is 0 when both files hold the same, else 1.

    Example: seeddelta diff a.seeddelta.gguf b.seeddelta.gguf

    Example: seeddelta diff model-f16.gguf model.seeddelta.gguf
    """
    from ..inspection import diff

    found = diff(settings.a, settings.b, weights=settings.weights, progress=not settings.quiet)
    if not put_json(settings.as_json, found.to_dict()):
        _print(found)
    if not found.same:
        raise typer.Exit(1)


def _print(found: Difference) -> None:
    from rich.table import Table

    from ..report.tables import make_console

    console = make_console()
    if found.keys:
        table = Table("key", "A", "B", title="keys that differ", title_justify="left")
        for key, (one, two) in found.keys.items():
            table.add_row(key, "-" if one is None else one, "-" if two is None else two)
        console.print(table)
    if found.changed:
        table = Table(title="tensors that differ", title_justify="left")
        table.add_column("tensor", no_wrap=True)
        for heading in ("A", "B"):
            table.add_column(heading, overflow="fold")
        for heading in ("kB A", "kB B", "error A", "error B", "‖A−B‖/‖A‖"):
            table.add_column(heading, justify="right", no_wrap=True)
        for tensor in found.changed:
            table.add_row(
                tensor.name, tensor.kind_a or "-", tensor.kind_b or "-", _kb(tensor.bytes_a), _kb(tensor.bytes_b),
                _error(tensor.error_a), _error(tensor.error_b), _error(tensor.rel),
            )  # fmt: skip
        console.print(table)
    equal = len(found.tensors) - len(found.changed)
    console.print(
        f"{equal} tensors are stored alike, {len(found.changed)} are not; {len(found.keys)} keys differ; "
        f"{found.bytes_a / 1e6:.1f} MB and {found.bytes_b / 1e6:.1f} MB"
    )


def _kb(count: int | None) -> str:
    return "-" if count is None else f"{count / 1000:.1f}"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
