"""`seeddelta dequantize`: a plain dense GGUF from a SeedΔ or quantised one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RecipeError


def command(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="SeedΔ or quantised GGUF model.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Dense GGUF model to write.")],
    type: Annotated[str, typer.Option("--type", metavar="f16|f32", help="Type of the matrices.")] = "f16",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Write a model with dense F16 or F32 weights, which stock llama.cpp loads."""
    from ..gguf.dequantize import dequantize

    if type not in ("f16", "f32"):
        raise RecipeError(f"--type {type} is not known; choose f16 or f32")
    dequantize(source, output, type="f16" if type == "f16" else "f32", progress=not quiet)
    if not quiet:
        typer.echo(f"{output}: {output.stat().st_size / 2**20:.1f} MiB")
