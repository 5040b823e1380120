"""`seeddelta imatrix`: what goes into a model's matrices, measured on a text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..calibrate.gradient import DEFAULT_CHUNKS
from ..errors import ImatrixError

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--model", "-m", help="Dense (or quantised) GGUF model."),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--file", "-f", help="Calibration text. Never the text you evaluate on."),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Importance matrix, GGUF, as llama-imatrix writes it."),
    ] = None,
    in_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--in-file", help="An importance matrix to show (--show-statistics); nothing is measured."),
    ] = None,
    hessian: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--hessian", help="Also write the covariance of the inputs, for `seeddelta build --hessian`."),
    ] = None,
    gradient: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--gradient",
            help="Also write the covariance of the loss' gradients at the outputs, for `seeddelta build --gradient` "
            "(llama, qwen2, qwen3).",
        ),
    ] = None,
    gradient_chunks: Annotated[
        int, typer.Option("--gradient-chunks", help="Chunks that --gradient takes from all over the text.")
    ] = DEFAULT_CHUNKS,
    ctx: Annotated[int, typer.Option("--ctx", help="Tokens a chunk.")] = 512,
    chunks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--chunks", help="Chunks to read (default: the whole text)."),
    ] = None,
    skip: Annotated[int, typer.Option("--skip", help="Leave out the first tokens of every chunk.")] = 0,
    clip: Annotated[
        float,
        typer.Option("--clip", help="Limit each normalised input (root mean square 1) to this magnitude; 0 is none."),
    ] = 0.0,
    targets: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--targets", help="Matrices, as for build. Default: full; all with --layers."),
    ] = None,
    layers: Annotated[Optional[str], typer.Option("--layers", help="Layers A-B (default: all).")] = None,  # noqa: UP045
    threads: Annotated[int, typer.Option("--threads", "-t", help="Threads; 0 is all processors.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from OUTPUT.checkpoint, where an earlier run stopped.")
    ] = True,
    show_statistics: Annotated[
        bool, typer.Option("--show-statistics", help="Print for each input how unevenly its columns matter.")
    ] = False,
) -> None:
    """Measure which input columns of every matrix matter, on a calibration text.

    The importance matrix tells the encoder (and llama-quantize) how much an error in each column costs. The covariance
    says which columns go together, so that the encoder can make up for an error in one column in the next ones:
    at 4 bits this takes away most of the loss. The gradients say the same of the rows, for a fifth of the rest.

    Example: seeddelta imatrix -m dense.gguf -f valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48

    Example: seeddelta imatrix --in-file imatrix.gguf --show-statistics
    """
    if in_file is not None:
        _show(in_file)
        return
    if model is None or text is None or output is None:
        raise ImatrixError("-m, -f and -o must be given to measure, or --in-file to show what was measured; see --help")
    from ..calibrate import capture, capture_gradient, write_covariance
    from ..calibrate.statistics import statistics_table
    from ..gguf.imatrix import write_imatrix
    from ..gguf.writer import check_writable

    for path in filter(None, (output, hessian, gradient)):
        check_writable(path)
    # llama.cpp's threads spin between its steps and keep the sums waiting; OpenMP reads this once, when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    checkpoint = output.with_name(output.name + ".checkpoint")
    captured = capture(
        model, text, ctx=ctx, chunks=chunks, covariance=hessian is not None, skip=skip, clip=clip, targets=targets,
        layers=layers, threads=threads, checkpoint=checkpoint if resume else None,
    )  # fmt: skip
    write_imatrix(output, captured.imatrix())
    typer.echo(f"{output}: {len(captured.representatives)} matrices, {captured.tokens} tokens")
    if hessian is not None:
        write_covariance(hessian, captured)
        typer.echo(f"{hessian}: {len(set(captured.representatives.values()))} covariances")
    for name, count in captured.nonfinite().items():
        typer.echo(f"warning: the input of {name} was NaN or infinite in {count} tokens, which were left out", err=True)
    if resume:
        captured.discard_checkpoint()
    if gradient is not None:
        found = capture_gradient(model, text, gradient, ctx=ctx, chunks=gradient_chunks, threads=threads)
        typer.echo(f"{gradient}: gradients of {found} matrices")
    if show_statistics:
        from rich.console import Console

        Console().print(statistics_table(captured))


def _show(path: Path) -> None:
    from rich.console import Console

    from ..calibrate.statistics import imatrix_table
    from ..gguf.imatrix import read_imatrix

    console = Console()
    console = console if console.is_terminal else Console(width=160)
    console.print(imatrix_table(read_imatrix(path)))
