"""What to tune and how, checked before anything is measured."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from ..convert.rates import RATES, Proc, parse_override
from ..convert.recipe import Recipe
from ..settings.tuning import TuneSettings


class TuneOptions(TuneSettings):
    """Options of an autotuning. Raises RecipeError for options that contradict each other or are out of range.

    `recipe` is everything but the rates, with the budget as its `target_bpw` or `size`; tensors that its
    `tensor_type` names keep their rates and are not measured. Its `output` is the file to build.
    """

    recipe: Recipe
    output: Path = Field(description="Recipe to write, YAML, for seeddelta build --config.")
    build: bool = Field(default=False, description="Keep the model of the recipe, as its output.")
    checkpoint: Path | None = Field(default=None, description="Folder of what is measured. Default: OUTPUT.autotune.")

    @model_validator(mode="after")
    def _check_together(self) -> TuneOptions:
        budgets = (self.recipe.target_bpw, self.recipe.size, self.max_dppl)
        if sum(budget is not None for budget in budgets) != 1:
            raise ValueError("give one of --size, --bpw and --max-dppl")
        if not self.recipe.has_codes or self.recipe.residual_scheme != "none":
            raise ValueError(
                "rates are those of --base-kind lanes without a residual; leave --base-kind and --scheme out"
            )
        if self.recipe.proc_sparse or any(isinstance(parse_override(t)[1], Proc) for t in self.recipe.tensor_type):
            raise ValueError("rates are those of byte lanes; leave proc-sparse out, or keep such matrices dense")
        if self.reference not in RATES:
            raise ValueError(
                f"--reference {self.reference:g} is no rate; choose from {', '.join(f'{r:g}' for r in RATES)}"
            )
        if self.max_dppl is not None and self.verify_chunks < 2:
            raise ValueError("--max-dppl is measured on the held-out text; give --verify-chunks 2 or more")
        if self.verify_chunks == 1:
            raise ValueError("--verify-chunks 1 is too few to compare; give 2 or more, or 0 not to compare")
        return self

    @property
    def folder(self) -> Path:
        """Where everything is kept until the recipe is written."""
        return self.checkpoint or self.output.with_name(self.output.name + ".autotune")
