"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import EvaluationError
from ..settings.runtime import RuntimeConfig

Models = Annotated[list[Path], typer.Option("--model", "-m", help="GGUF or SeedΔ model; repeat it to compare models.")]
# `Optional`: typer before 0.15 cannot read `X | None` on Python 3.10
Threads = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--threads", "-t", metavar="N[,N…]", help="Threads. Default: all cores."),
]
Fallback = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--seeddelta-fallback", metavar="DENSE.GGUF", help="Dense model for weights that give NaN or miss the gap."
    ),
]
Gap = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--seeddelta-gap", help="Tensors with a larger relative error are taken from the fallback."),
]
SeedDelta = Annotated[
    bool, typer.Option("--seeddelta", help="Accepted for llama.cpp-style command lines; SeedΔ files are recognised.")
]
StateCells = Annotated[
    bool,
    typer.Option("--statecells", help="Refuse models without StateCells weights, which are served in any case."),
]
ProcSparse = Annotated[
    bool,
    typer.Option("--proc-sparse/--no-proc-sparse", help="Off: proc-sparse weights are taken from the fallback."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


def parse_threads(text: str | None) -> list[int] | None:
    """Numbers of threads from "2" or "1,2,4"; None for None. Raises EvaluationError."""
    if text is None:
        return None
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise EvaluationError(f"--threads {text} is no list of numbers from 1 on; write for example --threads 1,2")
    return counts


def require_statecells(models: Sequence[Path]) -> None:
    """Raises EvaluationError when none of the models has a weight that is a codebook alone."""
    from ..gguf.hub import located
    from ..gguf.reader import has_statecells

    if not any(located(model).is_file() and has_statecells(model) for model in models):
        names = ", ".join(map(str, models))
        raise EvaluationError(
            f"{names}: no StateCells weights; make some with `seeddelta build --statecells`, or leave --statecells out"
        )


def load_options(fallback: Path | None, gap: float | None) -> dict[str, Any]:
    """Keywords of `seeddelta.load` that JSON can hold (`config` as a dict). Raises EvaluationError."""
    from ..gguf.hub import located

    if gap is not None and fallback is None:
        raise EvaluationError("--seeddelta-gap needs --seeddelta-fallback dense.gguf to take the tensors from")
    if fallback is not None and not located(fallback).is_file():
        raise EvaluationError(f"{fallback}: no such file; give the dense GGUF model")
    options: dict[str, Any] = {} if fallback is None else {"fallback": str(fallback)}
    return options if gap is None else options | {"config": {"gap": gap}}


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
