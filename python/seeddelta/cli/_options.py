"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..errors import EvaluationError
from ..settings.runtime import RuntimeConfig
from ..settings.tree import STDOUT


def put_json(to: Path | None, data: Any) -> bool:
    """Write what --json asks for. Returns True when it went to stdout, where nothing else belongs then."""
    from ..storage.output import atomic_output

    if to is None:
        return False
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if to == STDOUT:
        typer.echo(text, nl=False)
        return True
    with atomic_output(to) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # of a surrogate that is JSON, too
    return False


def require_statecells(models: Sequence[Path]) -> None:
    """Raises EvaluationError when none of the models has a weight that is a codebook alone."""
    from ..gguf.hub import located
    from ..gguf.reader import has_statecells

    if not any(located(model).is_file() and has_statecells(model) for model in models):
        names = ", ".join(map(str, models))
        raise EvaluationError(
            f"{names}: no StateCells weights; make some with `seeddelta build --statecells`, or leave --statecells out"
        )


# what an ordinary model can do with the settings of a SeedΔ file, and the other way round
_OF_SEEDDELTA = {"fallback", "gap", "dense", "statecells", "proc_sparse"}
_OF_ORDINARY = {"columns", "column_targets"}


def model_options(models: Sequence[Path], runtime: RuntimeConfig) -> list[dict[str, Any]]:
    """Keywords of `seeddelta.load` for each model: fallback and gap for SeedΔ files, skipping and attention for all but
    the first of several, which the others are compared with."""
    from ..gguf.hub import located
    from ..gguf.reader import is_seeddelta

    found = []
    for index, model in enumerate(models):
        converted = located(model).is_file() and is_seeddelta(model)
        leave_out = _OF_ORDINARY if converted else _OF_SEEDDELTA
        if index == 0 and len(models) > 1:
            leave_out = set(RuntimeConfig.model_fields) - (_OF_SEEDDELTA if converted else set())
        config = {name: value for name, value in runtime.to_dict().items() if name not in leave_out}
        found.append({"config": config} if config else {})
    return found
