"""Settings of `seeddelta autotune`, but for the recipe that it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from .kinds import Group
from .patterns import Percent
from .tree import Flag


class TuneSettings(Group):
    """What is measured to choose the rates, and how the result is compared."""

    max_dppl: Annotated[Percent | None, Flag(shown=True, metavar="PERCENT", panel="File")] = Field(
        default=None,
        gt=0,
        le=100,
        description="In place of a budget: the largest change of the perplexity in percent, on the held-out text, with "
        "a margin of 1.64 standard errors. The smallest model that keeps to it is searched for.",
    )
    text: Annotated[Path, Flag(names=("--text", "-f"), panel="Calibration")] = Field(
        description="Calibration text, used from its end. Never the text you evaluate on."
    )
    verify_text: Annotated[Path | None, Flag(shown=True, panel="Calibration")] = Field(
        default=None, description="Held-out text that the result is compared on. Default: the end of --text."
    )
    ctx: Annotated[int, Flag(names=("--ctx", "-c"), panel="Calibration")] = Field(
        default=512, ge=8, description="Tokens of a chunk; the second half is scored."
    )
    chunks: Annotated[int, Flag(shown=True, panel="Calibration")] = Field(
        default=4, ge=1, description="Chunks that every group is measured on."
    )
    verify_chunks: Annotated[int, Flag(shown=True, panel="Calibration")] = Field(
        default=16, ge=0, description="Chunks of the held-out text that the result is compared on; 0: it is not."
    )
    bands: Annotated[int, Flag(shown=True, panel="Calibration")] = Field(
        default=4, ge=1, description="Bands that the layers between the first and the last one are cut into."
    )
    detail: Annotated[bool, Flag(shown=True, panel="Calibration")] = Field(
        default=False, description="Measure every layer by itself: several times as long."
    )
    reference: Annotated[float, Flag(metavar="BITS", panel="Calibration")] = Field(
        default=3, description="Bits at which the groups are measured."
    )
    keep: Annotated[bool, Flag(shown=True, panel="Run", decides="nothing")] = Field(
        default=False,
        description="Keep the folder of what was measured: another budget of the model then takes a build, no more.",
    )
