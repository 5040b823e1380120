"""`seeddelta dequantize`: a plain GGUF from a SeedΔ or quantized one."""

from __future__ import annotations

import typer

from ..settings.files import DequantizeSettings
from ._command import from_settings


@from_settings(DequantizeSettings)
def command(settings: DequantizeSettings) -> None:
    """Write a plain GGUF that stock llama.cpp loads: F16, F32, BF16 or a type of gguf-py.

    Other types: write F16 and give it to llama-quantize, or to `seeddelta report --quants`.

    Example: seeddelta dequantize model.seeddelta.gguf -o model-f16.gguf
    """
    from ..gguf.dequantize import dequantize

    dequantize(settings.source, settings.output, type=settings.type, progress=not settings.quiet)
    if not settings.quiet:
        typer.echo(f"{settings.output}: {settings.output.stat().st_size / 1e6:.1f} MB")
