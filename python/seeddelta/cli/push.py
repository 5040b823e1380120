"""`seeddelta push`: a model and its page to the Hugging Face hub."""

from __future__ import annotations

import typer

from ..settings.files import PushSettings
from ._command import from_settings


@from_settings(PushSettings)
def command(settings: PushSettings) -> None:
    """Upload models and their card to the Hugging Face hub. A broken upload can be repeated.

    Example: seeddelta push model.seeddelta.gguf --repo me/model-seeddelta --card README.md --dry-run
    """
    from ..report.push import plan, push

    files = [(path, path.name) for path in settings.model]
    files += [] if settings.card is None else [(settings.card, "README.md")]
    uploads = plan(files)
    for one in uploads:
        typer.echo(f"{one.name}  {one.size / 1e6:.1f} MB  sha256 {one.sha256}")
    if settings.dry_run:
        typer.echo(f"nothing was sent to {settings.repository}: --dry-run")
        return
    sent = push(uploads, settings.repository, private=settings.private)
    typer.echo(f"https://huggingface.co/{settings.repository}: {len(sent)} of {len(uploads)} files sent")
