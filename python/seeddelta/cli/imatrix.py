"""`seeddelta imatrix`: what goes into a model's matrices, measured on a text."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from ..errors import ImatrixError
from ..settings.calibration import CaptureSettings
from ._command import from_settings


@from_settings(CaptureSettings)
def command(settings: CaptureSettings) -> None:
    """Measure which input columns of every matrix matter, on a calibration text.

    The importance matrix tells the encoder (and llama-quantize) how much an error in each column costs. The covariance
    says which columns go together, so that the encoder can make up for an error in one column in the next ones:
    at 4 bits this takes away most of the loss. The gradients say the same of the rows.

    Example: seeddelta imatrix -m dense.gguf -f valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48

    Example: seeddelta imatrix --in-file imatrix.gguf --show-statistics
    """
    if settings.in_file is not None:
        _show(settings.in_file)
        return
    model, text, output, hessian = settings.model, settings.text, settings.output, settings.hessian
    if model is None or text is None or output is None:
        raise ImatrixError("-m, -f and -o must be given to measure, or --in-file to show what was measured; see --help")
    from .._output import check_writable
    from ..calibrate import capture, capture_gradient, write_covariance
    from ..calibrate.statistics import statistics_table
    from ..gguf.imatrix import write_imatrix
    from ..report.tables import make_console

    for path in filter(None, (output, hessian, settings.gradient)):
        check_writable(path)
    # llama.cpp's threads spin between its steps and keep the sums waiting; OpenMP reads this once, when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    checkpoint = output.with_name(output.name + ".checkpoint")
    options = settings.model_dump(include={"ctx", "chunks", "skip", "clip", "targets", "layers", "threads"})
    captured = capture(
        model,
        text,
        covariance=hessian is not None,
        checkpoint=checkpoint if settings.resume else None,
        progress=not settings.quiet,
        **options,
    )
    write_imatrix(output, captured.imatrix())
    summary = [f"{output}: {len(captured.representatives)} matrices, {captured.tokens} tokens"]
    if hessian is not None:
        write_covariance(hessian, captured)
        summary.append(f"{hessian}: {len(set(captured.representatives.values()))} covariances")
    if not settings.quiet:
        typer.echo("\n".join(summary))
    for name, count in captured.nonfinite().items():
        typer.echo(f"warning: the input of {name} was NaN or infinite in {count} tokens, which were left out", err=True)
    if settings.resume:
        captured.discard_checkpoint()
    if settings.gradient is not None:
        found = capture_gradient(
            model, text, settings.gradient, ctx=settings.ctx, chunks=settings.gradient_chunks, threads=settings.threads
        )
        if not settings.quiet:
            typer.echo(f"{settings.gradient}: gradients of {found} matrices")
    if settings.show_statistics:
        make_console().print(statistics_table(captured))


def _show(path: Path) -> None:
    from ..calibrate.statistics import imatrix_table
    from ..gguf.imatrix import read_imatrix
    from ..report.tables import make_console

    make_console(width=160).print(imatrix_table(read_imatrix(path)))
