"""`seeddelta build`: the settings are those of Recipe."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ..convert.recipe import Recipe
from ..settings import Flag
from ..settings.measuring import QUIET
from ..settings.tree import STDOUT
from ._command import from_settings
from ._options import put_json

STATECELLS = {"base_kind": "none", "scheme": "codebook_resid", "bits": 4, "K": "auto"}  # what --statecells sets


class BuildSettings(Recipe):
    """A recipe, and what only the command line has."""

    statecells: Annotated[bool, Flag(decides="nothing", panel="Base")] = Field(
        default=False, description="A codebook as the whole weight (docs/guide/statecells.md)."
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar and no table.")

    @model_validator(mode="before")
    @classmethod
    def _apply_statecells(cls, options: dict[str, Any]) -> dict[str, Any]:
        if str(options.get("statecells", False)).lower() not in ("true", "on", "1", "yes"):
            return options
        wanted = {"preset": (None,), "base_kind": ("none",), "scheme": ("codebook", "codebook_resid")}
        for name, fitting in wanted.items():
            if options.get(name, fitting[0]) not in fitting:
                flag = name.replace("_", "-")
                raise ValueError(f"--statecells makes a codebook the whole weight; leave out --{flag} {options[name]}")
        return STATECELLS | options

    def recipe(self) -> Recipe:
        """The recipe alone."""
        own = {"statecells", "quiet"} | ({"report_json"} if self.report_json == STDOUT else set())
        return Recipe(**self.model_dump(exclude_unset=True, exclude=own))


@from_settings(BuildSettings)
def command(settings: BuildSettings) -> None:
    """Encode a model with an imatrix or a covariance that was measured before, or with neither.

    Example: seeddelta build model-f16.gguf -o model.seeddelta.gguf --bits 4
    """
    from ..convert.pipeline import build
    from ..report.tables import make_console

    recipe = settings.recipe()
    report = build(recipe, progress=not settings.quiet)
    to_stdout = settings.report_json if settings.report_json == STDOUT else None
    if put_json(to_stdout, report.model_dump(mode="json")) or settings.quiet:
        return
    console = make_console()
    console.print(report.to_table())
    what = f"dry run: {recipe.output} is not written" if recipe.dry_run else ", ".join(report.files)
    console.print(f"{what}: {report.sizes}", soft_wrap=True)
    if report.kept_dense:
        console.print(
            f"{len(report.kept_dense)} tensors are kept dense, beyond --seeddelta-gap {recipe.seeddelta_gap:g}"
        )
    if report.unsafe:
        console.print(
            f"{len(report.unsafe)} tensors are unsafe, beyond --seeddelta-gap {recipe.seeddelta_gap:g}: run the file "
            f"with --seeddelta-fallback {recipe.input}",
            soft_wrap=True,
        )
