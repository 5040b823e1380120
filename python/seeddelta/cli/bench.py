"""`seeddelta bench`: tokens a second of models, measured in turns."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ._options import (
    AsJson,
    Fallback,
    Gap,
    Models,
    ProcSparse,
    Quiet,
    SeedDelta,
    StateCells,
    Threads,
    load_options,
    parse_threads,
    require_statecells,
)
from ._skipping import model_options, skipping
from ._state_pack import state_pack, with_state_pack

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


@state_pack
@skipping(skip_prompt=False)
def command(
    model: Models,
    n_prompt: Annotated[
        int, typer.Option("--n-prompt", "-p", min=0, help="Tokens of the prompt; 0: not measured.")
    ] = 512,
    n_gen: Annotated[int, typer.Option("--n-gen", "-n", min=0, help="Tokens to generate; 0: not measured.")] = 128,
    threads: Threads = None,
    reps: Annotated[int, typer.Option("--reps", "-r", min=1, help="Measurements; median and range are shown.")] = 5,
    fallback: Fallback = None,
    gap: Gap = None,
    as_json: AsJson = False,
    seeddelta: SeedDelta = False,
    statecells: StateCells = False,
    proc_sparse: ProcSparse = True,
    quiet: Quiet = False,
    *,
    skipping: dict[str, Any],
    state_pack_kv: dict[str, Any] | None = None,
) -> None:
    """Measure the speed of prompts and of generation.

    Models and thread counts take turns, one repetition after the other, so that a machine that gets slower or faster
    meanwhile treats all alike. Each model has its own process; one computes at a time. Skipping (--columns, --kwta,
    --state-pack) is for all models but the first of several.

    Example: seeddelta bench -m dense.gguf -m model.seeddelta.gguf --threads 1,2
    """
    from ..evaluate import evaluate

    if statecells:
        require_statecells(model)

    options = model_options(model, load_options(fallback, gap, proc_sparse), skipping)
    comparison = evaluate(
        model,
        threads=parse_threads(threads),
        reps=reps,
        n_prompt=n_prompt,
        n_gen=n_gen,
        options=with_state_pack(options, state_pack_kv),
        progress=not quiet,
    )
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
        return
    from ..report.tables import make_console, speed_table

    console = make_console()
    console.print(speed_table([(report.path, report.speed) for report in comparison.models]))
    console.print(f"{n_prompt} prompt and {n_gen} generated tokens, median (range) of {reps}")
