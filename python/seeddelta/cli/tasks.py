"""`seeddelta tasks`: multiple-choice tasks, models side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import EvaluationError
from ..settings.measuring import TASK_CONTEXT

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[list[Path], typer.Option("--model", "-m", help="GGUF or SeedΔ model; repeat it to compare.")],
    hellaswag: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--hellaswag", metavar="FILE", help="Tasks in llama-perplexity's format: six lines each."),
    ] = None,
    winogrande: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--winogrande", metavar="FILE", help="Tasks in llama-perplexity's format: CSV."),
    ] = None,
    multiple_choice: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--multiple-choice", metavar="FILE", help="Tasks in llama-perplexity's binary format."),
    ] = None,
    harness: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--tasks", metavar="NAME[,NAME…]", help="Tasks of lm-evaluation-harness (extra tasks)."),
    ] = None,
    include: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--include", metavar="DIR", help="Directory with tasks of your own for --tasks (YAML)."),
    ] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Tasks at most. Default: all.")] = None,  # noqa: UP045
    context: Annotated[int, typer.Option("--ctx", "-c", min=16, help="Context in tokens.")] = TASK_CONTEXT,
    threads: Annotated[Optional[int], typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,  # noqa: UP045
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score models on tasks. Accuracies come with standard errors, and with the paired difference from the first model.

    Example: seeddelta tasks -m dense.gguf -m model.seeddelta.gguf --hellaswag hellaswag_val_full.txt --limit 400

    Example: seeddelta tasks -m model.seeddelta.gguf --tasks arc_easy,piqa --limit 200
    """
    from ..evaluate.choices import READERS

    files = {"hellaswag": hellaswag, "winogrande": winogrande, "multiple_choice": multiple_choice}
    chosen = {name: READERS[name](path)[:limit] for name, path in files.items() if path is not None}
    if not chosen and harness is None:
        raise EvaluationError("no tasks; give --hellaswag, --winogrande or --multiple-choice FILE, or --tasks NAMES")
    rows = _choices(model, chosen, context, threads) if chosen else []
    if harness is not None:
        rows += _harness(model, harness.split(","), include, limit, context, threads)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from ..report.tables import make_console

    table = Table("model", "task", "number", "accuracy", "change")
    for row in rows:
        change = "" if row["change"] is None else f"{100 * row['change']:+.2f} ± {100 * row['change_stderr']:.2f}"
        accuracy = f"{100 * row['accuracy']:.2f} ± {100 * row['stderr']:.2f}"
        table.add_row(Path(row["model"]).name, row["task"], str(row["tasks"]), accuracy, change)
    make_console().print(table)


def _choices(models: list[Path], chosen: dict[str, Any], context: int, threads: int | None) -> list[dict[str, Any]]:
    from ..evaluate.choices import ChoiceResult, score_tasks
    from ..runtime.session import open_model

    rows: list[dict[str, Any]] = []
    base: dict[str, ChoiceResult] = {}
    for path in models:
        llm = open_model(path, n_ctx=context, threads=threads)
        try:
            for name, tasks in chosen.items():
                result = score_tasks(llm, tasks)
                change: tuple[float | None, float | None] = (None, None)
                if name in base:
                    change = result.difference(base[name])
                base.setdefault(name, result)
                row = {"model": str(path), "task": name} | result.to_dict()
                rows.append(row | {"change": change[0], "change_stderr": change[1]})
        finally:
            llm.close()
    return rows


def _harness(
    models: list[Path], names: list[str], include: Path | None, limit: int | None, context: int, threads: int | None
) -> list[dict[str, Any]]:
    from ..evaluate.harness import SeedDeltaLM, run_tasks

    rows = []
    for path in models:
        lm = SeedDeltaLM(str(path), n_ctx=context, threads=threads)
        try:
            rows += [{"model": str(path)} | row for row in run_tasks(lm, names, include, limit)]
        finally:
            lm.llm.close()
    return rows
