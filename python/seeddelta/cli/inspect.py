"""`seeddelta inspect`: what is in a SeedΔ file (or in any GGUF)."""

from __future__ import annotations

import logging
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
    """Show what is in a file: size, origin, calibration, and the matrices by role; with -v every key and tensor, too.

    Errors are relative to the original weights, plain and weighted by the importance of the columns. Shapes, sizes and
    indices are checked on the way; `seeddelta verify` checks the data.

    Example: seeddelta inspect model.seeddelta.gguf
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
        _print(summary, all_of_it=logging.getLogger("seeddelta").isEnabledFor(logging.INFO))  # -v


def _print(summary: dict[str, Any], *, all_of_it: bool) -> None:
    from rich.table import Table

    from ..gguf.roles import RoleSums, terminal_table
    from ..inspection.summary import origin_of
    from ..report.tables import WIDTH, make_console

    console = make_console(width=150 if all_of_it else WIDTH)
    console.print(
        f"{summary['path']}: {summary['bytes'] / 1e6:.1f} MB; {summary['bits_per_weight']:.3f} bits per converted "
        f"weight, {summary['model_bits_per_weight']:.3f} over all weights",
        soft_wrap=True,
    )
    for name, text in origin_of(summary):
        console.print(f"{name:<13}  {one_line(text)}", soft_wrap=True)
    roles, totals = ([RoleSums.from_dict(row) for row in summary[name]] for name in ("roles", "totals"))
    console.print(terminal_table(roles, totals))
    if not all_of_it:
        console.print("every key and tensor: -v")
        return
    keys = Table(title="keys", show_header=False)
    for key, value in summary["keys"].items():
        keys.add_row(one_line(key), one_line(value))
    console.print(keys)
    _print_converted(console, summary)


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
