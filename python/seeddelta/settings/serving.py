"""Settings of a model that answers requests: chat and serve."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..errors import ConfigError
from ..processors import MAX_THREADS
from .patterns import Threads
from .runtime import RuntimeConfig
from .tree import MODEL, MODELS, Flag, Settings

# Tokens of prompts in one pass. From 64 tokens of a sequence on, ggml's flash attention takes another kernel, which
# rounds more; with fewer a reply does not depend on who asks at the same time.
CHUNK = 48
QUEUE = 64


THREADS_HELP = "Threads; 0: all cores. Default: 0."
SEVERAL = Flag(names=("--threads", "-t"), shown=True, metavar="N[,N…]")  # measured one after the other


class Threaded(Settings):
    """Threads of a command."""

    threads: Annotated[Threads, Flag(names=("--threads", "-t"), shown=True, metavar="N")] = Field(
        default=None, description=THREADS_HELP
    )

    @property
    def thread_count(self) -> int | None:
        """The number of threads for what is run once; None: all cores. Raises ConfigError for several."""
        if self.threads is not None and len(self.threads) > 1:
            raise ConfigError(
                f"--threads {','.join(map(str, self.threads))}: give one number; eval, bench and report take several"
            )
        return None if self.threads is None else self.threads[0]


def check_fallback(fallback: Path | None, needs: Mapping[str, bool]) -> None:
    """Raises ValueError for a fallback that is no file, or without one for a flag of `needs` that is given."""
    from ..gguf.hub import located

    for flag, given in needs.items():
        if given and fallback is None:
            raise ValueError(f"{flag} needs --seeddelta-fallback dense.gguf to take the tensors from")
    if fallback is not None and not located(fallback).is_file():
        raise ValueError(f"{fallback}: no such file; give the dense GGUF model")


class OfRuntime(Settings):
    """How weights are served."""

    runtime: Annotated[RuntimeConfig, Flag(prefix="--", panel="Model")] = Field(
        default_factory=RuntimeConfig, description="How SeedΔ weights are served, and what is skipped."
    )

    @model_validator(mode="after")
    def _check_fallback(self) -> OfRuntime:
        runtime = self.runtime
        needs = {"--seeddelta-gap": runtime.gap is not None, "--no-proc-sparse": not runtime.proc_sparse}
        check_fallback(runtime.fallback, needs | {"--dense": bool(runtime.dense)})
        return self


class UsingModels(OfRuntime, Threaded):
    """What the commands that use models share."""


class ExecSettings(OfRuntime):
    """`seeddelta exec`."""

    arguments: Annotated[
        tuple[str, ...], Flag(argument=True, repeat=True, metavar="-- PROGRAM [ARGUMENTS]")
    ] = Field(min_length=1, description="What is run.")  # fmt: skip
    metrics_json: Annotated[Path | None, Flag(output="file", shown=True)] = Field(
        default=None, description="Write the run-time counters to this file when a context ends."
    )
    dry_run: Annotated[bool, Flag(shown=True)] = Field(
        default=False, description="Print the command line and its variables, no more."
    )


class Talking(Settings):
    """What a model that talks has."""

    context: Annotated[int, Flag(names=("--ctx", "-c"), shown=True)] = Field(
        default=4096, ge=0, description="Tokens of a request or a conversation, replies included; 0: as trained."
    )
    chat_format: Annotated[str | None, Flag()] = Field(
        default=None, description="A chat format of llama-cpp-python in place of the model's own template."
    )


class Sharing(Talking):
    """What a model that several clients share has."""

    parallel: Annotated[int, Flag(names=("--parallel", "-np"), shown=True)] = Field(
        default=4, ge=1, le=64, description="Requests at work at the same time."
    )
    queue: Annotated[int, Flag(shown=True)] = Field(
        default=QUEUE, ge=0, description="Requests that may wait; beyond them: 503."
    )
    chunk: Annotated[int, Flag()] = Field(
        default=CHUNK, ge=1, description="Tokens of prompts that are read in one pass, in between others' replies."
    )


class ModelOptions(Sharing):
    """One model that is served. `load` has further keywords of llama_cpp.Llama."""

    path: Path
    alias: str | None = None
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    load: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The alias, or the file's name without endings."""
        return self.alias or self.path.name.removesuffix(".gguf").removesuffix(".seeddelta")


class ChatSettings(Talking, UsingModels):
    """`seeddelta chat`."""

    model: Annotated[Path, MODEL] = Field(description="GGUF or SeedΔ model.")
    system: Annotated[str | None, Flag(shown=True)] = Field(
        default=None, description="System prompt; @FILE takes it from a file."
    )
    n_predict: Annotated[int | None, Flag(names=("--n-predict", "-n"), shown=True)] = Field(
        default=None, ge=1, description="Tokens of a reply at most. Default: what fits."
    )
    temperature: Annotated[float, Flag(names=("--temp",), shown=True)] = Field(
        default=0.7, ge=0, description="Temperature; 0 takes the likeliest token."
    )
    seed: Annotated[int | None, Flag(names=("--seed", "-s"), shown=True)] = Field(
        default=None, description="Seed of the sampling."
    )
    history: Annotated[Path | None, Flag(output="file", shown=True)] = Field(
        default=None, description="Keep the lines that you wrote here, for the up arrow."
    )


class ServeSettings(Sharing, UsingModels):
    """`seeddelta serve`. What is given for all models counts where a model of `models` does not say its own."""

    model: Annotated[tuple[str, ...], replace(MODELS, metavar="[ALIAS=]MODEL…")] = Field(
        default=(), description="GGUF or SeedΔ models, each with a name for clients if you like."
    )
    models: Annotated[tuple[dict[str, Any], ...], Flag(file_only=True)] = Field(
        default=(), description="Models with settings of their own: path, alias, and those of all models."
    )
    host: Annotated[str, Flag(shown=True)] = Field(default="127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Flag(shown=True)] = Field(
        default=8080, ge=0, le=65535, description="Port; 0 takes a free one."
    )
    api_key: Annotated[str | None, Flag(shown=True)] = Field(
        default=None, description="Key that clients must send. Default: that of the variable SEEDDELTA_API_KEY."
    )
    cors: Annotated[tuple[str, ...], Flag(shown=True, repeat=True, metavar="ORIGIN")] = Field(
        default=(), description="Origin of web pages that may send requests (CORS), or *; repeat it for several."
    )
    grace: Annotated[float, Flag(shown=True, metavar="SECONDS")] = Field(
        default=30.0, ge=0, description="Time for replies to end when it is stopped."
    )

    @model_validator(mode="after")
    def _check_models(self) -> ServeSettings:
        names = [model.name for model in self.served()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two models are called {twice[0]!r}; give one an alias")
        return self

    @property
    def key(self) -> str | None:
        """What clients must send; None lets everybody in."""
        return self.api_key or os.environ.get("SEEDDELTA_API_KEY") or None

    def served(self) -> list[ModelOptions]:
        """The models, each with all of its settings. Raises ConfigError for one that is wrong."""
        shared = {name: getattr(self, name) for name in Sharing.model_fields}
        shared |= {"runtime": self.runtime, "threads": self.thread_count}
        given = [_named(text) for text in self.model] or self.models
        return [ModelOptions(**(shared | one)) for one in given]


def _named(text: str) -> dict[str, Any]:
    alias, sign, path = text.partition("=")
    return {"alias": alias, "path": path} if sign and not Path(text).exists() else {"path": text}
