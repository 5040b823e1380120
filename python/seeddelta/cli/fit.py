"""`seeddelta fit`: row scales and norms that make up for what the codes lose."""

from __future__ import annotations

import typer

from ..settings.fitting import FitSettings
from ._command import from_settings
from ._options import put_json


@from_settings(FitSettings)
def command(settings: FitSettings) -> None:
    """Fine-tune the row scales and norms of a SeedΔ file to the original model's predictions.

    The file stays as large and as fast; its divergence from the original model falls. For the architectures that
    have gradients (docs/guide/architectures.md). It takes longer than the encoding; a run that was stopped goes on
    where it was.

    Example: seeddelta fit model.seeddelta.gguf -d model-f16.gguf -o fitted.seeddelta.gguf --text valid.txt
    """
    from ..convert.fit import fit

    options = settings.model_dump(include={"text", "ctx", "chunks", "threads", "resume"})
    report = fit(settings.model, settings.dense, settings.output, progress=not settings.quiet, **options)
    if not put_json(settings.as_json, report.model_dump(mode="json")) and not settings.quiet:
        typer.echo(
            f"{report.path}: KL divergence on {report.held_out} chunks that were held out {report.before:.4f} -> "
            f"{report.after:.4f} nats ({100 * (report.after / report.before - 1):+.1f}%)"
        )
