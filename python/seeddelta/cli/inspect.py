"""`seeddelta inspect`: what is in a SeedΔ file (or in any GGUF)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ..errors import one_line
from ..settings.files import InspectSettings
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from rich.console import Console


@from_settings(InspectSettings)
def command(settings: InspectSettings) -> None:
    """Show what is in a file: origin, recipe, and the kind, size and error of every tensor.

    Errors are relative to the original weights, plain and weighted by the importance of the columns. Shapes, sizes and
    indices are checked on the way; `seeddelta verify` checks the data.

    Example: seeddelta inspect model.seeddelta.gguf --no-tensors
    """
    from ..gguf.model_file import read_header
    from ..gguf.reader import is_seeddelta, open_seeddelta
    from ..inspection.summary import summarize, totals

    path = settings.path
    if not is_seeddelta(path):
        summary = {"path": str(path), "seeddelta": False, **totals(read_header(path))}
        if put_json(settings.as_json, summary):
            return
        typer.echo(
            f"{path}: a plain GGUF, no SeedΔ file; {summary['tensors']} tensors, {summary['bytes'] / 1e6:.1f} MB"
        )
        return
    with open_seeddelta(path) as file:
        summary = summarize(file)
    if not put_json(settings.as_json, summary):
        _print_tables(summary, settings.tensors)


def _print_tables(summary: dict[str, Any], tensors: bool) -> None:
    from rich.table import Table

    from ..report.tables import make_console

    console = make_console(width=150)
    keys = Table(title=summary["path"], show_header=False)
    for key, value in summary["keys"].items():
        keys.add_row(one_line(key), one_line(value))
    keys.add_row("checksums", "of every tensor" if summary["checksums"] else "none")
    console.print(keys)
    _print_roles(console, summary)
    if tensors:
        _print_converted(console, summary)
    console.print(
        f"{len(summary['converted'])} converted tensors: {summary['weights'] / 1e6:.1f}M weights, "
        f"{summary['payload_bytes'] / 1e6:.1f} MB, {summary['bits_per_weight']:.3f} bits per weight; "
        f"{summary['dense_tensors']} dense tensors: {summary['dense_bytes'] / 1e6:.1f} MB; "
        f"{summary['model_bits_per_weight']:.3f} bits per weight over the whole model"
    )


def _print_roles(console: Console, summary: dict[str, Any]) -> None:
    from rich.table import Table

    from ..report.values import role_rows

    table = Table(title="by role")
    table.add_column("role", no_wrap=True)
    for heading in ("tensors", "weights, M", "MB", "bits", "rel_l2, %", "rel_l2_w, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in role_rows(summary):
        table.add_row(*row)
    console.print(table)


def _print_converted(console: Console, summary: dict[str, Any]) -> None:
    from rich.table import Table

    from ..inspection.summary import describe_base, describe_residual

    table = Table(title="converted tensors")
    for heading in ("tensor", "shape", "from", "base", "residual"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seed", "rate", "bits", "kB", "rel_l2", "rel_l2_w"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for tensor in summary["converted"]:
        table.add_row(
            tensor["name"],
            "x".join(map(str, (*filter(None, [tensor["experts"]]), *tensor["shape"]))),
            tensor["source_type"],
            describe_base(tensor),
            describe_residual(tensor),
            str(tensor["base_seed"]),
            ", ".join(f"{tensor[name]:g}" for name in ("rate", "fine_rate") if tensor[name] is not None) or "-",
            f"{tensor['bits_per_weight']:.3f}",
            f"{tensor['payload_bytes'] / 1000:.1f}",
            f"{tensor['rel_l2']:.4f}",
            f"{tensor['rel_l2_w']:.4f}",
            "unsafe" if tensor["unsafe"] else "statecells" if tensor["statecells"] else "",
        )
    console.print(table)
