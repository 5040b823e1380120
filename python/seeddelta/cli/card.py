"""`seeddelta card`: a model's page for the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="SeedΔ file.")],
    evaluation: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--eval", metavar="FILE", help="What `seeddelta eval --json` printed; makes a table."),
    ] = None,
    base_model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--base-model", metavar="OWNER/NAME", help="The model on the hub that it was made from."),
    ] = None,
    license: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--license", help="License as the hub calls it. Default: what the file says."),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", metavar="FILE", help="Write it here, README.md for one. Default: stdout."),
    ] = None,
) -> None:
    """Write a model's page: where it comes from, how it was made, how good it is and how to run it.

    Example: seeddelta card model.seeddelta.gguf --eval eval.json --base-model owner/name -o README.md
    """
    from ..report.card import model_card

    text = model_card(model, base_model=base_model, license=license, evaluation=evaluation)
    if output is None:
        typer.echo(text, nl=False)
        return
    from ..gguf.writer import atomic_output

    with atomic_output(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
