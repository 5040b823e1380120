"""Settings of `seeddelta sparsify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .measuring import QUIET
from .patterns import Percent
from .serving import Threaded
from .tree import Flag


class SparsifySettings(Threaded):
    """How much of each input of a model can be skipped."""

    model: Annotated[Path, Flag(argument=True, metavar="MODEL")] = Field(
        description="Ordinary GGUF model, or a SeedΔ file in column layout."
    )
    text: Annotated[Path, Flag(names=("--text", "-f"))] = Field(
        description="Calibration text, never the one evaluated on."
    )
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"))] = Field(
        description="File for --kwta-file: .yaml, or .json."
    )
    max_dppl: Annotated[Percent | None, Flag(shown=True, metavar="PERCENT")] = Field(
        default=None, ge=0, le=1000, description="Largest rise of the perplexity on the text. Default: 2%."
    )
    keep: Annotated[float | None, Flag(shown=True)] = Field(
        default=None, description="Share of the weights that a token shall read, instead; not evaluated."
    )
    score: Annotated[Literal["magnitude", "wina"], Flag(names=("--kwta-score",), shown=True)] = Field(
        default="wina", description="Score of an input."
    )
    target: Annotated[Literal["mlp", "attn", "both"], Flag(names=("--kwta-target",), shown=True)] = Field(
        default="both", description="Matrices."
    )
    chunks: Annotated[int, Flag(shown=True)] = Field(
        default=8, ge=1, description="Chunks that perplexities are measured on."
    )
    probe_chunks: Annotated[int, Flag(shown=True)] = Field(
        default=2, ge=1, description="Chunks for the profile, and for every kind and layer."
    )
    context: Annotated[int, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=512, description="Tokens of a chunk."
    )
    per_layer: Annotated[bool, Flag(shown=True)] = Field(
        default=True, description="Probe every layer; without, layers count alike."
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No lines on stderr.")
