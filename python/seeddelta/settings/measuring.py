"""Settings of the commands that use a model: run, eval and bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from .patterns import Threads
from .serving import SEVERAL, THREADS_HELP, UsingModels
from .tree import COMMON, JSON, JSON_HELP, MODEL, MODELS, Flag, Settings

QUIET = Flag(names=("--quiet", "-q"), shown=True, panel=COMMON)


class Serving(UsingModels):
    """What the commands that use models for a while share."""

    quiet: Annotated[bool, QUIET] = Field(default=False, description="No progress bars, and no summary.")


class RunSettings(Serving):
    """`seeddelta run`."""

    model: Annotated[Path, MODEL] = Field(description="GGUF or SeedΔ model.")
    prompt: Annotated[str | None, Flag(names=("--prompt", "-p"), shown=True)] = Field(
        default=None, description="Text to continue; - reads it from stdin."
    )
    file: Annotated[Path | None, Flag(names=("--file", "-f"), shown=True)] = Field(
        default=None, description="Text to continue, from a file (UTF-8)."
    )
    n_predict: Annotated[int, Flag(names=("--n-predict", "-n"), shown=True)] = Field(
        default=128, ge=1, description="Tokens to generate at most."
    )
    temperature: Annotated[float, Flag(names=("--temp",), shown=True)] = Field(
        default=0.0, ge=0, description="Temperature; 0 takes the likeliest token. Default: 0."
    )
    top_k: Annotated[int, Flag(shown=True)] = Field(
        default=40, ge=0, description="Sample among the K likeliest tokens; 0: all."
    )
    top_p: Annotated[float, Flag(shown=True)] = Field(
        default=0.95, ge=0, le=1, description="Sample among the likeliest tokens whose probabilities add up to this."
    )
    min_p: Annotated[float, Flag(shown=True)] = Field(
        default=0.05, ge=0, le=1, description="Sample among tokens of at least this share of the likeliest one's."
    )
    repeat_penalty: Annotated[float, Flag(shown=True)] = Field(
        default=1.0, gt=0, description="Divides the logits of the last 64 tokens; 1: no penalty."
    )
    seed: Annotated[int | None, Flag(names=("--seed", "-s"), shown=True)] = Field(
        default=None, description="Seed of the sampling."
    )
    json_schema: Annotated[Path | None, Flag(shown=True)] = Field(
        default=None, description="The text is JSON that follows the schema in this file."
    )
    context: Annotated[int | None, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=None, ge=1, description="Context in tokens. Default: what is needed, at least 512."
    )
    chat: Annotated[bool, Flag(shown=True)] = Field(
        default=False, description="Give the prompt as a question, in the model's chat form."
    )
    metrics_json: Annotated[Path | None, JSON] = Field(
        default=None, description="Text, speed, memory and counters as JSON: in place of the text, or in a file."
    )

    @model_validator(mode="after")
    def _check_texts(self) -> RunSettings:
        if self.prompt is not None and self.file is not None:
            raise ValueError("--prompt and --file both say what to continue; leave one of them out")
        return self


class Comparing(Serving):
    """What eval and bench share."""

    model: Annotated[tuple[Path, ...], MODELS] = Field(
        min_length=1, description="GGUF or SeedΔ models; the first is what the others are compared with."
    )
    threads: Annotated[Threads, SEVERAL] = Field(default=None, description=THREADS_HELP)
    as_json: Annotated[Path | None, JSON] = Field(default=None, description=JSON_HELP)


class Scoring(Settings):
    """How models are compared on a text."""

    text: Annotated[Path | None, Flag(names=("--text", "-f"), shown=True)] = Field(
        default=None,
        description="Text (UTF-8) for KL divergence and perplexity. Without it only size, speed and memory count.",
    )
    context: Annotated[int, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=512, description="Tokens of a chunk; the second half is scored."
    )
    chunks: Annotated[int | None, Flag(shown=True)] = Field(
        default=None, ge=1, description="Chunks at most. Default: all."
    )
    speed: Annotated[bool, Flag(shown=True)] = Field(
        default=True, description="Measure the speed, models taking turns."
    )
    reps: Annotated[int, Flag(names=("--reps", "-r"), shown=True)] = Field(
        default=3, ge=1, description="Measurements of speed; medians are shown."
    )


class EvalSettings(Scoring, Comparing):
    """`seeddelta eval`."""

    rare: ClassVar[frozenset[str]] = frozenset(("reps",))

    kl: Annotated[bool, Flag(shown=True)] = Field(
        default=True, description="Measure the divergence from the first model (25 MB of disk a chunk)."
    )
    kl_base: Annotated[Path | None, Flag(shown=True)] = Field(
        default=None,
        description="Log-probabilities of a base model (also those of llama-perplexity --kl-divergence-base): all "
        "models are compared with it, on the text that is in it.",
    )
    save_kl_base: Annotated[Path | None, Flag(output="file")] = Field(
        default=None, description="Write the first model's log-probabilities to this file."
    )
    resume: Annotated[Path | None, Flag(output="folder", shown=True, metavar="DIR")] = Field(
        default=None, description="Keep finished chunks here, and go on from those that are there."
    )


class BenchSettings(Comparing):
    """`seeddelta bench`."""

    n_prompt: Annotated[int, Flag(names=("--n-prompt", "-p"), shown=True)] = Field(
        default=512, ge=0, description="Tokens of the prompt; 0: not measured."
    )
    n_gen: Annotated[int, Flag(names=("--n-gen", "-n"), shown=True)] = Field(
        default=128, ge=0, description="Tokens to generate; 0: not measured."
    )
    reps: Annotated[int, Flag(names=("--reps", "-r"), shown=True)] = Field(
        default=5, ge=1, description="Measurements; median and range are shown."
    )
