"""`seeddelta imatrix`: what goes into a model's matrices, measured on a text."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import typer

from ..settings.calibration import CaptureSettings
from ._command import from_settings

if TYPE_CHECKING:
    from ..calibrate.capture import Capture


@from_settings(CaptureSettings)
def command(settings: CaptureSettings) -> None:
    """Measure the inputs of every matrix on a calibration text: an imatrix, a covariance, gradients.

    The importance matrix tells the encoder (and llama-quantize) how much an error in each column costs. The covariance
    says which columns go together, so that the encoder can make up for an error in one column in the next ones:
    at 4 bits this takes away most of the loss. The gradients say the same of the rows.

    Example: seeddelta imatrix dense.gguf -f valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48
    """
    from ..calibrate.capture import capture
    from ..calibrate.groups import check_computed
    from ..calibrate.streamed import capture_streamed
    from ..gguf.source import open_source

    model, text, output, hessian = settings.model, settings.text, settings.output, settings.hessian
    # llama.cpp's threads spin between its steps and keep the sums waiting; OpenMP reads this once, when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    options = settings.model_dump(include={"ctx", "chunks", "targets", "layers", "threads"})
    options["progress"] = not settings.quiet
    if hessian is not None:  # they would not fit the memory together
        parts = output.with_name(output.name + ".parts")
        with capture_streamed(model, text, parts, resume=settings.resume, **options) as streamed:
            if streamed is not None:
                _write(settings, streamed)
                return
    check_computed(open_source(model), settings.threads)
    _write(settings, capture(model, text, covariance=hessian is not None, **options))


def _write(settings: CaptureSettings, captured: Capture) -> None:
    """The files, what is to be said of them, and the gradients, which are measured by themselves."""
    from ..calibrate import capture_gradient, write_covariance
    from ..convert.prices import price
    from ..convert.recipe import Recipe
    from ..gguf.imatrix import write_imatrix

    model, text, output, hessian = settings.model, settings.text, settings.output, settings.hessian
    write_imatrix(output, captured.imatrix())
    summary = [f"{output}: {len(captured.representatives)} matrices, {captured.tokens} tokens"]
    if hessian is not None:
        write_covariance(hessian, captured)
        summary.append(f"{hessian}: {len(set(captured.representatives.values()))} covariances")
    if not settings.quiet:
        typer.echo("\n".join(summary))
    for name, count in captured.nonfinite().items():
        typer.echo(f"warning: the input of {name} was NaN or infinite in {count} tokens, which were left out", err=True)
    if settings.gradient is not None:
        found = capture_gradient(
            model, text, settings.gradient, ctx=settings.ctx, chunks=settings.gradient_chunks,
            threads=settings.threads, price=partial(price, recipe=Recipe(input=model, output=settings.gradient)),
        )  # fmt: skip
        if not settings.quiet:
            typer.echo(f"{settings.gradient}: gradients of {found} matrices")
