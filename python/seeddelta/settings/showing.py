"""Settings of the commands that show models: report, tasks and demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from .measuring import QUIET, Scoring
from .patterns import Threads
from .serving import SEVERAL, THREADS_HELP, Threaded, check_fallback
from .tree import JSON, JSON_HELP, MODELS, Flag


class ReportSettings(Scoring, Threaded):
    """`seeddelta report`."""

    output: Annotated[Path, Flag(output="folder", names=("--output", "-o"), metavar="DIR")] = Field(
        description="Folder of the report."
    )
    saved: Annotated[tuple[Path, ...], Flag(names=("--from",), shown=True, repeat=True, metavar="FILE")] = Field(
        default=(), description="JSON of `seeddelta eval --json`; repeat it. Nothing is measured."
    )
    threads: Annotated[Threads, SEVERAL] = Field(default=None, description=THREADS_HELP)
    model: Annotated[tuple[Path, ...], MODELS] = Field(
        default=(), description="Models to measure, the original first; with --from: SeedΔ files to show."
    )
    quants: Annotated[str | None, Flag(shown=True, metavar="Q4_K_M,…")] = Field(
        default=None, description="Types of llama.cpp to make of the first model, and measure."
    )
    imatrix: Annotated[Path | None, Flag(shown=True)] = Field(
        default=None, description="Importance matrix for --quants."
    )
    work: Annotated[Path | None, Flag(output="folder", shown=True, metavar="DIR")] = Field(
        default=None, description="Folder of the models of --quants, kept. Default: DIR/models."
    )
    prompt: Annotated[str | None, Flag(names=("--prompt", "-p"), shown=True)] = Field(
        default=None, description="Text that every model goes on with, for the page."
    )
    title: Annotated[str, Flag(shown=True)] = Field(default="SeedΔ report", description="Title of the page.")
    fallback: Annotated[Path | None, Flag(names=("--seeddelta-fallback",), shown=True, metavar="DENSE.GGUF")] = Field(
        default=None, description="Original model: replaces matrices that give NaN or whose error is above the gap."
    )
    gap: Annotated[float | None, Flag(names=("--seeddelta-gap",), shown=True)] = Field(
        default=None, description="Tensors with a larger relative error are taken from the fallback."
    )
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bars.")

    @model_validator(mode="after")
    def _check_together(self) -> ReportSettings:
        if self.saved and (self.text is not None or self.quants is not None):
            raise ValueError("--from takes measurements that are there; leave --text and --quants out")
        if not self.saved and not self.model:
            raise ValueError("nothing to report: give --from eval.json, or models")
        if not self.saved:
            check_fallback(self.fallback, {"--seeddelta-gap": self.gap is not None})
        return self


class DemoSettings(Threaded):
    """`seeddelta demo`."""

    keep: Annotated[Path | None, Flag(output="folder", shown=True, metavar="DIR")] = Field(
        default=None, description="Keep the models in this folder. Default: a temporary one."
    )
    bits: Annotated[float, Flag(shown=True)] = Field(
        default=4, description="Bits a weight of the SeedΔ model: 2, 2.5, 3 or 4."
    )
    chunks: Annotated[int, Flag(shown=True)] = Field(
        default=8, ge=1, description="Chunks of 512 tokens for the perplexity."
    )
    as_json: Annotated[Path | None, JSON] = Field(default=None, description=JSON_HELP)
    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bars.")
