"""Settings of `seeddelta imatrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..errors import ImatrixError, SeedDeltaError
from ..processors import MAX_THREADS
from .measuring import QUIET
from .tree import MODEL, Flag, Settings

CHUNKS = 48  # of SmolLM2 24 did as well
GRADIENT_CHUNKS = 16


class CaptureSettings(Settings):
    """What goes into a model's matrices, measured on a text."""

    error: ClassVar[type[SeedDeltaError]] = ImatrixError

    model: Annotated[Path, MODEL] = Field(description="Original GGUF model, of any type.")
    text: Annotated[Path, Flag(names=("--text", "-f"))] = Field(
        description="Calibration text. Never the text you evaluate on."
    )
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"))] = Field(
        description="Importance matrix, GGUF, as llama-imatrix writes it."
    )
    hessian: Annotated[Path | None, Flag(output="file", shown=True)] = Field(
        default=None, description="Also write the covariance of the inputs, for `seeddelta build --hessian`."
    )
    gradient: Annotated[Path | None, Flag(output="file", shown=True)] = Field(
        default=None,
        description="Also write the covariance of the loss' gradients at the outputs, for `seeddelta build --gradient` "
        "(llama, mistral, qwen, gemma, phi3 and others: see docs/guide/architectures.md).",
    )
    gradient_chunks: Annotated[int, Flag()] = Field(
        default=GRADIENT_CHUNKS, ge=1, description="Chunks that --gradient takes from all over the text."
    )
    ctx: Annotated[int, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=512, ge=1, description="Tokens a chunk."
    )
    chunks: Annotated[int | None, Flag(shown=True)] = Field(
        default=None, ge=1, description="Chunks to read. Default: the whole text."
    )
    targets: Annotated[str | None, Flag(shown=True, metavar="NAMES")] = Field(
        default=None, description="Matrices, as for build. Default: full; all with --layers."
    )
    layers: Annotated[str | None, Flag(shown=True, metavar="A-B")] = Field(
        default=None, description="Layers to measure. Default: all."
    )
    threads: Annotated[int, Flag(names=("--threads", "-t"), shown=True)] = Field(
        default=0, ge=0, le=MAX_THREADS, description="Threads; 0: all cores."
    )
    resume: Annotated[bool, Flag(shown=True)] = Field(
        default=True, description="With --hessian: go on from OUTPUT.parts, where an earlier run stopped."
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bar, and no summary.")
