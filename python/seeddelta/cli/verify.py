"""`seeddelta verify`: does a SeedΔ file hold what it says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import typer

from ..settings.files import VerifySettings
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from ..inspection import Verification


@from_settings(VerifySettings)
def command(settings: VerifySettings) -> None:
    """Check a SeedΔ file: checksums of all tensors, and norms of the weights.

    Without --source the norm of every stored matrix is compared. With it also the source's SHA-256, the norms of its
    matrices, the errors, and the tensors that were kept. What differs is listed; the exit code is then 1.

    Example: seeddelta verify model.seeddelta.gguf --source model-f16.gguf
    """
    from ..inspection import verify

    found = verify(
        settings.path, source=settings.source, imatrix=settings.imatrix, hessian=settings.hessian,
        progress=not settings.quiet,
    )  # fmt: skip
    if not put_json(settings.as_json, found.to_dict()) and not (settings.quiet and found.ok):
        _print(found)
    if not found.ok:
        raise typer.Exit(1)


def _print(found: Verification) -> None:
    from rich.table import Table

    from ..report.tables import make_console

    console = make_console()
    if found.failures:
        table = Table(title=f"{found.path}: what does not agree", title_justify="left")
        for heading in ("tensor", "what", "the file says", "found"):
            table.add_column(heading, overflow="fold")
        for check in found.failures:
            table.add_row(check.tensor or "(file)", check.what, _text(check.stored), _text(check.found))
        console.print(table)
    counts = Counter("checksum" if check.what.startswith("CRC-32") else check.what for check in found.checks)
    kinds = ", ".join(f"{what} {count}" for what, count in counts.items())
    failed = f"{len(found.failures)} failed" if found.failures else "none failed"
    console.print(f"{len(found.checks)} checks, {failed}: {kinds}", soft_wrap=True)
    for line in found.skipped:
        console.print(f"not compared: {line}")


def _text(value: str | float) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
