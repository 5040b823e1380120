"""Settings of `seeddelta fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..errors import RecipeError, SeedDeltaError
from ..processors import MAX_THREADS
from .measuring import QUIET
from .tree import JSON, JSON_HELP, Flag, Settings

FIT_CHUNKS = 96
LEAST_CHUNKS = 8  # one of so many is held out


class FitSettings(Settings):
    """Row scales and norms of a SeedΔ file, fitted to the original model."""

    error: ClassVar[type[SeedDeltaError]] = RecipeError

    model: Annotated[Path, Flag(argument=True, metavar="MODEL")] = Field(description="SeedΔ file to start from.")
    dense: Annotated[Path, Flag(names=("--dense", "-d"))] = Field(description="Dense GGUF model that it was made from.")
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"))] = Field(description="SeedΔ file to write.")
    text: Annotated[Path | None, Flag(names=("--text", "-f"), shown=True)] = Field(
        default=None, description="Text in UTF-8, never one that you evaluate on. Default: that of the package."
    )
    chunks: Annotated[int, Flag(shown=True)] = Field(
        default=FIT_CHUNKS,
        ge=LEAST_CHUNKS,
        description="Chunks of the text, from all over it, each used once; an eighth is held out.",
    )
    ctx: Annotated[int, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=512, ge=16, description="Tokens a chunk."
    )
    threads: Annotated[int, Flag(names=("--threads", "-t"), shown=True)] = Field(
        default=0, ge=0, le=MAX_THREADS, description="Threads; 0: all cores."
    )
    resume: Annotated[bool, Flag(shown=True)] = Field(
        default=True, description="Go on from OUTPUT.fit, where an earlier run stopped."
    )
    as_json: Annotated[Path | None, JSON] = Field(default=None, description=JSON_HELP)
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar, and no summary.")
