"""`seeddelta dequantize`: a plain GGUF from a SeedΔ or quantised one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="SeedΔ or quantised GGUF model.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Plain GGUF model to write.")],
    type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Type of the matrices: f32, f16, bf16, q8_0, q5_1 … q4_0.")
    ] = "f16",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Write a model with plain weights, which stock llama.cpp loads: F16, F32, BF16, or quantised by gguf-py.

    Other types: write F16 and give it to llama-quantize, or to `seeddelta report --quants`.

    Example: seeddelta dequantize model.seeddelta.gguf model-f16.gguf
    """
    from ..gguf.dequantize import dequantize

    dequantize(source, output, type=type, progress=not quiet)
    if not quiet:
        typer.echo(f"{output}: {output.stat().st_size / 2**20:.1f} MiB")
