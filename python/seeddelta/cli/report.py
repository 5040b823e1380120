"""`seeddelta report`: measurements as a page with figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import EvaluationError
from ..settings.showing import ReportSettings
from ._command import command_line, from_settings

if TYPE_CHECKING:
    from ..evaluate.measurements import Series


@from_settings(ReportSettings)
def command(settings: ReportSettings) -> None:
    """Write a page about models: quality against size, speed, memory, and the tensors of SeedΔ files.

    The page needs no network; figures and numbers are beside it as PNG, CSV and JSON.

    Example: seeddelta report dense.gguf model.seeddelta.gguf --quants Q4_K_M,Q3_K_M --text wiki.txt -o report

    Example: seeddelta eval dense.gguf model.seeddelta.gguf --text wiki.test.txt --json > eval.json;
    seeddelta report --from eval.json -o report
    """
    from ..evaluate.measurements import read_measurements
    from ..gguf.hub import located
    from ..report.page import write_report
    from ..session import read_text

    models = [located(path) for path in settings.model]
    if settings.saved:
        series = [one for path in settings.saved for one in read_measurements(path)]
        missing = next((path for path in models if not path.is_file()), None)
        if missing is not None:
            raise EvaluationError(f"{missing}: no such file; give a SeedΔ file")
    else:
        if settings.text is not None:
            read_text(settings.text)  # before anything is made
        if settings.quants is not None:
            models += _quantized(models[0], settings)
        series = [_measure(models, settings)]
    shown = models if settings.saved else ()
    page = write_report(series, settings.output, title=settings.title, command=command_line(), models=shown)
    if not settings.quiet:
        typer.echo(f"{page}: {page.stat().st_size / 1000:.0f} kB")


def _measure(models: list[Path], settings: ReportSettings) -> Series:
    from ..evaluate import evaluate
    from ..evaluate.measurements import of_comparison
    from ..report.machine import describe_machine

    load: dict[str, Any] = {} if settings.fallback is None else {"fallback": str(settings.fallback)}
    if settings.gap is not None:
        load["config"] = {"gap": settings.gap}
    comparison = evaluate(
        models,
        text=settings.text,
        n_ctx=settings.context,
        chunks=settings.chunks,
        threads=settings.threads,
        reps=settings.reps if settings.speed else 0,
        prompt=settings.prompt,
        options=load,
        progress=not settings.quiet,
    )
    return of_comparison(comparison, machine=describe_machine())


def _quantized(dense: Path, settings: ReportSettings) -> list[Path]:
    from ..evaluate.quantize import parse_types, quantized_model
    from ..gguf.source import open_source
    from ..storage.output import output_error

    types, work = parse_types(settings.quants or ""), settings.work or settings.output / "models"
    open_source(dense)  # refuses what is no original model, by name
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(work, error) from error
    show = (lambda text: None) if settings.quiet else lambda text: typer.echo(text, err=True)
    return [quantized_model(dense, work, kind, imatrix=settings.imatrix, announce=show) for kind in types]
