"""`seeddelta tasks`: multiple-choice tasks, models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..settings.showing import TaskSettings
from ._command import from_settings
from ._options import put_json


@from_settings(TaskSettings)
def command(settings: TaskSettings) -> None:
    """Score models on tasks, with standard errors and paired differences from the first model.

    Example: seeddelta tasks dense.gguf model.seeddelta.gguf --hellaswag hellaswag_val_full.txt --limit 400
    """
    from ..evaluate.choices import READERS

    files = {name: getattr(settings, name) for name in ("hellaswag", "winogrande", "multiple_choice")}
    chosen = {name: READERS[name](path)[: settings.limit] for name, path in files.items() if path is not None}
    rows = _choices(settings, chosen)
    if put_json(settings.as_json, rows):
        return
    from rich.table import Table

    from ..report.tables import make_console

    table = Table("model", "task", "number", "accuracy", "change")
    for row in rows:
        change = "" if row["change"] is None else f"{100 * row['change']:+.2f} ± {100 * row['change_stderr']:.2f}"
        accuracy = f"{100 * row['accuracy']:.2f} ± {100 * row['stderr']:.2f}"
        table.add_row(Path(row["model"]).name, row["task"], str(row["tasks"]), accuracy, change)
    make_console().print(table)


def _choices(settings: TaskSettings, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    from ..evaluate.choices import ChoiceResult, score_tasks
    from ..session import open_model

    rows: list[dict[str, Any]] = []
    base: dict[str, ChoiceResult] = {}
    for path in settings.model:
        llm = open_model(path, n_ctx=settings.context, threads=settings.thread_count)
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
