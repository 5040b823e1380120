"""`seeddelta card`: a model's page for the Hugging Face hub."""

from __future__ import annotations

import typer

from ..settings.files import CardSettings
from ._command import from_settings


@from_settings(CardSettings)
def command(settings: CardSettings) -> None:
    """Write a model's page: where it comes from, how it was made, how good it is and how to run it.

    Example: seeddelta card model.seeddelta.gguf --eval eval.json --base-model owner/name -o README.md
    """
    from ..report.card import model_card

    text = model_card(
        settings.model, base_model=settings.base_model, license=settings.license, evaluation=settings.evaluation
    )
    if settings.output is None:
        typer.echo(text, nl=False)
        return
    from ..storage.output import atomic_output

    with atomic_output(settings.output) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")
