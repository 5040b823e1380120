"""`seeddelta inspect`: what is in a SeedΔ file (or in any GGUF)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..settings.files import InspectSettings
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from rich.console import Console

    from ..gguf.header import TensorInfo


@from_settings(InspectSettings)
def command(settings: InspectSettings) -> None:
    """Show what is in a file: size, origin, calibration, and the matrices by role; with -v also keys and tensors.

    Errors are relative to the original weights, plain and weighted by the importance of the columns. Shapes, sizes and
    indices are checked on the way; `seeddelta verify` checks the data.

    Example: seeddelta inspect model.seeddelta.gguf
    """
    from ..gguf.model_file import read_header
    from ..gguf.reader import is_seeddelta, open_seeddelta
    from ..inspection.summary import summarize, summarize_plain

    path = settings.path
    if is_seeddelta(path):
        with open_seeddelta(path) as file:
            summary, kept = summarize(file), [file.header.tensors[name] for name in file.dense_tensors]
    else:
        header = read_header(path)
        summary, kept = summarize_plain(header), list(header.tensors.values())
    if not put_json(settings.as_json, summary):
        _print(summary, kept, all_of_it=logging.getLogger("seeddelta").isEnabledFor(logging.INFO))  # -v


def _print(summary: dict[str, Any], kept: Sequence[TensorInfo], *, all_of_it: bool) -> None:
    from rich.table import Table

    from ..gguf.roles import RoleSums, terminal_table
    from ..inspection.summary import origin_of
    from ..report.tables import WIDTH, make_console

    console = make_console(width=170 if all_of_it else WIDTH)
    ours = summary["seeddelta"]
    size, overall = f"{summary['bytes'] / 1e6:.1f} MB", f"{summary['model_bits_per_weight']:.3f}"
    if ours:
        told = f"{size}; {summary['bits_per_weight']:.3f} bits per converted weight, {overall} over all weights"
    else:
        told = f"a plain GGUF, {size}; {overall} bits per weight over all weights"
    console.print(f"{one_line(summary['path'])}: {told}", soft_wrap=True)
    for name, text in origin_of(summary):
        console.print(f"{name:<13}  {one_line(text)}", soft_wrap=True)
    roles, totals = ([RoleSums.from_dict(row) for row in summary[name]] for name in ("roles", "totals"))
    console.print(terminal_table(roles, totals))
    if not all_of_it:
        console.print("more: -v")
        return
    keys = Table(title="keys", show_header=False)
    for key, value in summary["keys"].items():
        keys.add_row(one_line(key), one_line(value))
    console.print(keys)
    if ours:
        _print_converted(console, summary)
    _print_tensors(console, "kept tensors" if ours else "tensors", kept)


def _print_tensors(console: Console, title: str, tensors: Sequence[TensorInfo]) -> None:
    from rich.table import Table

    table = Table(title=title)
    for heading in ("tensor", "shape", "type"):
        table.add_column(heading, no_wrap=True)
    table.add_column("kB", justify="right", no_wrap=True)
    for info in tensors:
        table.add_row(info.name, "x".join(map(str, info.shape)), info.type.name, f"{info.nbytes / 1000:.1f}")
    console.print(table)


def _print_converted(console: Console, summary: dict[str, Any]) -> None:
    from rich.table import Table

    from ..inspection.summary import describe_base, describe_residual

    table = Table(title="converted tensors")
    for heading in ("tensor", "shape", "from", "base", "residual"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seed", "code", "bits", "kB", "error, %", "weighted"):
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
            f"{100 * tensor['rel_l2']:.2f}",
            f"{100 * tensor['rel_l2_w']:.2f}",
            "unsafe" if tensor["unsafe"] else "statecells" if tensor["statecells"] else "",
        )
    console.print(table)
