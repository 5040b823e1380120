"""What to tune and how, checked before anything is measured."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from ..convert.rates import RATES, Proc, parse_override
from ..convert.recipe import Recipe
from ..settings.recipe import Group


class TuneOptions(Group):
    """Options of an autotuning. Raises RecipeError for options that contradict each other or are out of range.

    `recipe` is everything but the rates, with the budget as its `target_bpw` or `target_size`; tensors that its
    `tensor_type` names keep their rates and are not measured. Its `output` is the file to build.
    """

    recipe: Recipe
    output: Path = Field(description="Recipe to write, YAML, for seeddelta build --recipe.")
    build: bool = Field(default=False, description="Keep the model of the recipe, as its output.")
    max_dppl: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="In place of a budget: the largest change of the perplexity in percent, on the held-out text, with "
        "a margin of 1.64 standard errors. The smallest model that keeps to it is searched for.",
    )
    text: Path = Field(description="Calibration text. Never the text you evaluate on.")
    verify_text: Path | None = Field(default=None, description="Held-out text. Default: the end of --text.")
    ctx: int = Field(default=512, ge=8, description="Tokens of a chunk; the second half is scored.")
    chunks: int = Field(default=4, ge=1, description="Chunks that every group is measured on.")
    verify_chunks: int = Field(
        default=16,
        ge=0,
        description="Chunks of the held-out text that the result is compared on; 0: it is not compared.",
    )
    bands: int = Field(
        default=4, ge=1, description="Bands that the layers between the first and the last one are cut into."
    )
    detail: bool = Field(default=False, description="Measure every layer by itself: several times as long.")
    reference: float = Field(default=3, description="Bits at which the groups are measured.")
    checkpoint: Path | None = Field(default=None, description="Folder of what is measured. Default: OUTPUT.autotune.")
    keep: bool = Field(default=False, description="Keep that folder, for another budget of the same model.")

    @model_validator(mode="after")
    def _check_together(self) -> TuneOptions:
        budgets = (self.recipe.target_bpw, self.recipe.target_size, self.max_dppl)
        if sum(budget is not None for budget in budgets) != 1:
            raise ValueError("give one of --size, --bpw and --max-dppl")
        if not self.recipe.has_trellis or self.recipe.residual_scheme != "none":
            raise ValueError(
                "rates are those of --base-kind trellis without a residual; leave --base-kind and --scheme out"
            )
        if self.recipe.proc_sparse or any(isinstance(parse_override(t)[1], Proc) for t in self.recipe.tensor_type):
            raise ValueError("rates are those of the trellis; leave proc-sparse out, or keep such matrices dense")
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
