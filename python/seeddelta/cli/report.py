"""`seeddelta report`: measurements as a page with figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..errors import EvaluationError
from ._options import Fallback, Gap, Quiet, Threads, load_options, parse_threads

if TYPE_CHECKING:
    from ..report.measurements import Series

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    call: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the report.")],
    saved: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--from", metavar="FILE", help="JSON of `seeddelta eval --json`; repeat it. Nothing is measured."),
    ] = None,
    model: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--model", "-m", help="Model to measure, the dense one first; with --from: SeedΔ file to show."),
    ] = None,
    quants: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--quants", metavar="Q4_K_M,…", help="Types of llama.cpp to make of the first model, and measure."
        ),
    ] = None,
    imatrix: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--imatrix", metavar="FILE", help="Importance matrix for --quants."),
    ] = None,
    work: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--work", metavar="DIR", help="Folder of the models of --quants, kept. Default: DIR/models."),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--text", "-f", metavar="FILE", help="Text for the perplexity (UTF-8). Without it: none."),
    ] = None,
    context: Annotated[int, typer.Option("--ctx", "-c", help="Tokens of a chunk; the second half is scored.")] = 512,
    chunks: Annotated[Optional[int], typer.Option("--chunks", help="Chunks at most. Default: all.")] = None,  # noqa: UP045
    threads: Threads = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed, models taking turns.")] = True,
    reps: Annotated[int, typer.Option("--reps", "-r", min=1, help="Measurements of speed; medians are shown.")] = 3,
    prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--prompt", "-p", help="Text that every model goes on with, for the page."),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the page.")] = "SeedΔ report",
    fallback: Fallback = None,
    gap: Gap = None,
    quiet: Quiet = False,
) -> None:
    """Make a page of measurements: quality against size, speed, memory, a map of every SeedΔ file's tensors, and how
    all of it was made. The page needs no network; figures and numbers are beside it as PNG, CSV and JSON.

    Example: seeddelta eval -m dense.gguf -m model.seeddelta.gguf --text wiki.test.txt --json > eval.json;
    seeddelta report --from eval.json -o report

    Example: seeddelta report -m dense.gguf -m model.seeddelta.gguf --quants Q4_K_M,Q3_K_M --text wiki.txt -o report
    """
    from ..gguf.hub import located
    from ..report.measurements import read_measurements
    from ..report.page import write_report

    models = [located(path) for path in model or ()]
    if saved:
        if text is not None or quants is not None:
            raise EvaluationError("--from takes measurements that are there; leave --text and --quants out")
        series = [one for path in saved for one in read_measurements(path)]
        missing = next((path for path in models if not path.is_file()), None)
        if missing is not None:
            raise EvaluationError(f"{missing}: no such file; give a SeedΔ file")
    else:
        if not models:
            raise EvaluationError("nothing to report: give --from eval.json, or models with -m")
        if quants is not None:
            models += _quantized(models[0], quants, work or output / "models", imatrix, quiet)
        options = {
            "text": text, "n_ctx": context, "chunks": chunks, "threads": parse_threads(threads),
            "reps": reps if speed else 0, "prompt": prompt, "options": load_options(fallback, gap),
            "progress": not quiet,
        }  # fmt: skip
        series = [_measure(models, options)]
    line = shlex.join(["seeddelta", *(call.obj or sys.argv[1:])])
    page = write_report(series, output, title=title, command=line, models=models if saved else ())
    if not quiet:
        typer.echo(f"{page}: {page.stat().st_size / 1024:.0f} KiB")


def _measure(models: list[Path], options: dict[str, Any]) -> Series:
    from ..evaluate import evaluate
    from ..report.machine import describe_machine
    from ..report.measurements import of_comparison

    return of_comparison(evaluate(models, **options), machine=describe_machine())


def _quantized(dense: Path, quants: str, work: Path, imatrix: Path | None, quiet: bool) -> list[Path]:
    from ..gguf.source import open_source
    from ..gguf.writer import output_error
    from ..runtime.quantize import parse_types, quantized_model

    types = parse_types(quants)
    open_source(dense)  # refuses what is no dense model, by name
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(work, error) from error
    show = (lambda text: None) if quiet else lambda text: typer.echo(text, err=True)
    return [quantized_model(dense, work, kind, imatrix=imatrix, announce=show) for kind in types]
