"""`seeddelta push`: a model and its page to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def command(
    model: Annotated[list[Path], typer.Argument(metavar="MODEL…", help="SeedΔ files.")],
    repository: Annotated[str, typer.Option("--repo", metavar="OWNER/NAME", help="Repository; made when not there.")],
    card: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--card", metavar="FILE", help="Its page (seeddelta card); uploaded as README.md."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="A new repository is private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be uploaded.")] = False,
) -> None:
    """Upload models and their page. What the hub has already is left out, so a broken upload can be called again.

    Example: seeddelta push model.seeddelta.gguf --repo me/model-seeddelta --card README.md --dry-run
    """
    from ..report.push import plan, push

    files = [(path, path.name) for path in model] + ([] if card is None else [(card, "README.md")])
    uploads = plan(files)
    for one in uploads:
        typer.echo(f"{one.name}  {one.size / 1e6:.1f} MB  sha256 {one.sha256}")
    if dry_run:
        typer.echo(f"nothing was sent to {repository}: --dry-run")
        return
    sent = push(uploads, repository, private=private)
    typer.echo(f"https://huggingface.co/{repository}: {len(sent)} of {len(uploads)} files sent")
