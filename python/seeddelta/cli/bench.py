"""`seeddelta bench`: tokens per second of models, measured in turns."""

from __future__ import annotations

from ..settings.measuring import BenchSettings
from ._command import from_settings
from ._options import model_options, put_json, require_statecells


@from_settings(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Measure the speed of prompts and of generation.

    Models and thread counts take turns, one repetition after the other, so that a machine that gets slower or faster
    meanwhile treats all alike. Each model has its own process; one computes at a time. Skipping (--columns, --kwta,
    --state-pack) is for all models but the first of several.

    Example: seeddelta bench dense.gguf model.seeddelta.gguf --threads 1,2
    """
    from ..evaluate import bench

    if settings.runtime.statecells:
        require_statecells(settings.model)
    comparison = bench(
        settings.model,
        threads=settings.threads,
        reps=settings.reps,
        n_prompt=settings.n_prompt,
        n_gen=settings.n_gen,
        options=model_options(settings.model, settings.runtime),
        progress=not settings.quiet,
    )
    if put_json(settings.as_json, comparison.to_dict()):
        return
    from ..report.tables import make_console, speed_table

    console = make_console()
    console.print(speed_table([(report.path, report.speed) for report in comparison.models]))
    console.print(
        f"{settings.n_prompt} prompt and {settings.n_gen} generated tokens, median (range) of {settings.reps}"
    )
