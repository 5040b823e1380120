"""`seeddelta autotune`: the rate of every group of matrices, from what it costs in the model's own predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from pydantic import Field

from ..convert.recipe import Recipe
from ..settings import Flag
from ..settings.measuring import QUIET
from ..settings.recipe import PRESETS
from ..settings.tree import JSON, JSON_HELP
from ..settings.tuning import TuneSettings
from ._command import from_settings
from ._options import put_json

if TYPE_CHECKING:
    from ..tune.plan import TunePlan
    from ..tune.report import TuneReport


class AutotuneSettings(Recipe, TuneSettings):
    """A recipe without its rates, and how they are chosen."""

    rare: ClassVar[frozenset[str]] = frozenset(
        ("preset", "base_kind", "scheme", "layout", "proc_sparse", "bits", "executor", "bands",
         "verify_chunks")
    )  # fmt: skip

    input: Annotated[Path, Flag(argument=True, metavar="MODEL", panel="File", decides="choice")] = Field(
        description="Original GGUF model (F16 or BF16 is best)."
    )
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"), panel="File", decides="nothing")] = Field(
        description="Recipe to write (YAML)."
    )
    build: Annotated[
        Path | None, Flag(output="file", shown=True, metavar="OUT.GGUF", panel="File", decides="nothing")
    ] = Field(default=None, description="Also keep the model that the recipe makes.")
    checkpoint: Annotated[Path | None, Flag(output="folder", metavar="DIR", panel="Run", decides="nothing")] = Field(
        default=None, description="Folder of what is measured. Default: OUTPUT.autotune."
    )
    report_json: Annotated[Path | None, replace(JSON, panel="Run", decides="nothing")] = Field(
        default=None, description=JSON_HELP
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar and no table.")


@from_settings(AutotuneSettings)
def command(settings: AutotuneSettings) -> None:
    """Choose the bits of each group of matrices for a size, by its measured effect on the KL divergence.

    A group is a role in a band of layers, such as attn_v of 8-14. Each is replaced by its encoded form while the others
    stay dense, and the divergence of the model's predictions is measured. Rates are then allocated under the one
    budget, the model is built and compared with one of uniform rates and the same bytes on held-out text; if it is
    not better the recipe is that one. What is measured is kept, so that a killed run goes on where it was.

    Example: seeddelta autotune dense.gguf --bpw 4.0 -f valid.txt --hessian cov.gguf -o recipe.yaml --build out.gguf

    Example: seeddelta autotune dense.gguf --max-dppl 2% -f valid.txt --hessian cov.gguf -o recipe.yaml

    Then: seeddelta build --config recipe.yaml
    """
    from ..tune import TuneOptions, autotune, plan

    own = {*AutotuneSettings.model_fields} - {*Recipe.model_fields} | {"checkpoint", "preset", "report_json"}
    recipe = settings.model_dump(exclude_unset=True, exclude=own)
    other = settings.max_dppl is not None or settings.size is not None
    if other and recipe.get("target_bpw") == PRESETS.get(settings.preset or "", {}).get("target_bpw"):
        recipe["target_bpw"] = None  # a preset may have a target, too
    recipe["output"] = settings.build or settings.output.with_suffix(".seeddelta.gguf")
    tuning = settings.model_dump(exclude_unset=True, include={*TuneSettings.model_fields, "output", "checkpoint"})
    options = TuneOptions(recipe=Recipe(**recipe), build=settings.build is not None, **tuning)
    if settings.dry_run:
        planned = plan(options)
        if not put_json(settings.report_json, planned.to_dict()):
            typer.echo(_planned_text(planned))
        return
    report = autotune(options, progress=not settings.quiet)
    if not put_json(settings.report_json, report.model_dump(mode="json")) and not settings.quiet:
        _print(report)


def _planned_text(planned: TunePlan) -> str:
    groups = ", ".join(group.name for group in planned.groups)
    return (
        f"{len(planned.groups)} groups: {groups}\n"
        f"{planned.evaluations} evaluations of {planned.chunks} chunks, about {planned.measure_seconds / 60:.1f} min\n"
        f"{planned.encoded_weights / 1e6:.0f} M weights to encode before, about {planned.encode_seconds / 60:.1f} min\n"
        f"{planned.builds} models built and compared, about {planned.verify_seconds / 60:.1f} min\n"
        "from one chunk and one matrix, on this machine as busy as it is now"
    )


def _print(report: TuneReport) -> None:
    from ..report.tables import make_console

    console = make_console()
    console.print(report.to_table())
    if report.candidates:
        console.print(report.candidates_table())
    console.print(
        f"all groups encoded cost {report.additivity:.2f} times the sum of theirs; at other rates the predictions are "
        f"off by {100 * report.accuracy:.0f}% ({len(report.checks)} checks)"
    )
    console.print(f"{report.decision}: {report.message}")
    console.print(
        f"{report.recipe}: {report.bits_per_weight:.3f} bits per weight; seeddelta build --config {report.recipe}"
    )
    if report.model is not None:
        console.print(f"{report.model}: built")
