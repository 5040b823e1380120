"""`seeddelta eval`: perplexity, speed and memory of models, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

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
@skipping(skip_prompt=True)
def command(
    model: Models,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--text", "-f", metavar="FILE", help="Text for the perplexity (UTF-8). Without it: none."),
    ] = None,
    context: Annotated[int, typer.Option("--ctx", "-c", help="Tokens of a chunk; the second half is scored.")] = 512,
    chunks: Annotated[Optional[int], typer.Option("--chunks", help="Chunks at most. Default: all.")] = None,  # noqa: UP045
    threads: Threads = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure the speed, models taking turns.")] = True,
    reps: Annotated[int, typer.Option("--reps", "-r", min=1, help="Measurements of speed; medians are shown.")] = 3,
    kl: Annotated[
        bool, typer.Option("--kl/--no-kl", help="Measure the divergence from the first model (25 MB of disk a chunk).")
    ] = True,
    kl_base: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--kl-base",
            metavar="FILE",
            help="Log-probabilities of a base model (also those of llama-perplexity --kl-divergence-base): all models "
            "are compared with it, on the text that is in it.",
        ),
    ] = None,
    save_kl_base: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--save-kl-base", metavar="FILE", help="Write the first model's log-probabilities to this file."),
    ] = None,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--resume", metavar="DIR", help="Keep finished chunks here, and go on from those that are there."),
    ] = None,
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
    """Compare models: size, perplexity, speed and memory. The first model is what the others are compared with.

    Chunks and score are those of llama-perplexity. The change compares the same tokens in both models, so its error is
    much smaller than that of either perplexity. Each model has its own process; memory is read after it generated 64
    tokens. Skipping (--columns, --kwta, --state-pack) is for all models but the first of several. Where
    the target is `kv`, their scored tokens are decoded one by one, since prompts are llama.cpp's; likewise with
    --state-pack-aggressive.

    Example: seeddelta eval -m dense.gguf -m model.seeddelta.gguf --text wiki.test.txt --chunks 16

    Example: seeddelta eval -m model.gguf --text wiki.test.txt --no-speed --json

    Example: seeddelta eval -m model.gguf -m model.gguf --text wiki.test.txt --columns f16 --kwta-k 0.6

    Example: seeddelta eval -m dense.gguf -f wiki.test.txt --no-speed --save-kl-base dense.kld

    Example: seeddelta eval -m a.gguf -m b.gguf --kl-base dense.kld --no-speed --resume eval-parts

    Example: seeddelta eval -m m.gguf -m m.gguf -f wiki.test.txt -c 4096 --state-pack binary --state-pack-target kv
    """
    from ..evaluate import evaluate

    if statecells:
        require_statecells(model)

    options = model_options(model, load_options(fallback, gap, proc_sparse), skipping)
    comparison = evaluate(
        model,
        text=text,
        n_ctx=context,
        chunks=chunks,
        threads=parse_threads(threads),
        reps=reps if speed else 0,
        kl=kl,
        kl_base=kl_base,
        save_kl_base=save_kl_base,
        resume=resume,
        options=with_state_pack(options, state_pack_kv),
        progress=not quiet,
    )
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
        return
    from ..report.tables import comparison_table, make_console

    scored = comparison.models[0].perplexity
    title = None
    if scored is not None:
        of = f"{scored.chunks} chunks of {scored.n_ctx}, {scored.tokens_scored} tokens scored"
        title = f"{text or kl_base}: {of}"
    make_console().print(comparison_table(comparison, title=title))
