"""`seeddelta quantize`: a dense model to a SeedΔ file in one command, block by block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..settings.recipe import PRESETS

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[
        Path, typer.Argument(help="Dense GGUF model (F32, F16, BF16 or quantised), or hf://owner/name[:file-or-quant].")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="SeedΔ file to write.")],
    preset: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--preset", help=f"Named set of options: {', '.join(PRESETS)}. [default: balanced]"),
    ] = None,
    bits: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--bits", help="Bits a weight of every matrix, in place of a preset: 2, 2.5, 3, 4, 5 or 6."),
    ] = None,
    targets: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--targets", help="Matrices to convert, as for build. [default: full]"),
    ] = None,
    converter: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--converter", help="llama.cpp's convert_hf_to_gguf.py, for a folder of safetensors."),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--text", "-f", help="Calibration text in UTF-8, never one that you evaluate on. [default: a mixed one]"
        ),
    ] = None,
    chunks: Annotated[int, typer.Option("--chunks", help="Chunks of the text to use, from all over it.")] = 48,
    ctx: Annotated[int, typer.Option("--ctx", help="Tokens a chunk.")] = 512,
    calibrate: Annotated[
        str, typer.Option("--calibrate", help="dense, or sequential: better and slower, needs more memory.")
    ] = "dense",
    gradient: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--gradient", help="Covariance of the loss' gradients, from seeddelta imatrix --gradient."),
    ] = None,
    ram: Annotated[str, typer.Option("--ram", help="Memory to keep to, for example 6G.")] = "8G",
    threads: Annotated[int, typer.Option("--threads", "-t", help="Threads; 0 is all processors.")] = 0,
    executor: Annotated[
        str, typer.Option("--executor", help="Where matrices are encoded: threads[:N], processes[:N] or dask://H:P.")
    ] = "threads",
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from OUTPUT.parts, where an earlier run stopped.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say size, time, memory and disk; write nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")] = False,
) -> None:
    """Convert a dense model into a SeedΔ file: measure its blocks on a text and encode them, one after the other.

    Memory does not grow with the number of blocks. A run that was stopped goes on where it was.

    Example: seeddelta quantize model-f16.gguf -o model.seeddelta.gguf

    Example: seeddelta quantize model-f16.gguf -o model.seeddelta.gguf --bits 4 --ram 6G
    """
    # llama.cpp's threads spin between its steps and keep the sums waiting; OpenMP reads this once, when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from rich.console import Console

    from ..convert.quantize import estimate_quantize, quantize

    given = {"preset": preset, "bits": bits, "targets": targets, "gradient": gradient}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    measured: dict[str, Any] = {
        "text": text, "calibrate": calibrate, "ctx": ctx, "chunks": chunks, "ram": ram, "threads": threads,
        "converter": converter, **options,
    }  # fmt: skip
    report = quantize(model, output, progress=not quiet, executor=executor, resume=resume, dry_run=dry_run, **measured)
    if quiet:
        return
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    console.print(report.to_table())
    bits_text = f"{report.bits_per_weight:.3f} bits a converted weight, {report.model_bits_per_weight:.3f} over all"
    if dry_run:
        needs = estimate_quantize(model, output, **measured)
        console.print(f"dry run: {output} is not written; {report.model_bytes_after / 2**20:.1f} MiB, {bits_text}")
        console.print(f"it takes {needs}")
    else:
        console.print(f"{output}: {report.file_bytes / 2**20:.1f} MiB, {bits_text}")
