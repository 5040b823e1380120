"""Options of the server: one tree, for the command line and for a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .._extras import needs_extra
from .._yaml import load_yaml
from ..errors import ConfigError

with needs_extra("serve"):
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

DEFAULT_CONTEXT = 4096


class ModelOptions(BaseModel):
    """One model that is served.

    Attributes:
        path: GGUF or SeedΔ file.
        alias: its name for clients; the file's name without endings when it is left out.
        context: positions of one request, prompt and reply; 0 is what the model was trained with.
        parallel: requests at work at the same time.
        queue: requests that may wait for a slot.
        chunk: tokens of prompts that are read in one pass, in between others' replies.
        drafts: tokens guessed ahead; None is 4 with a draft model, else 0.
        draft: a smaller model that guesses, in place of looking up what followed in the context.
        threads: None takes all cores.
        chat_format: a chat format of llama-cpp-python in place of the model's own template.
        fallback: dense model for SeedΔ weights that give NaN.
        runtime: fields of seeddelta.RuntimeConfig.
        load: further keywords of llama_cpp.Llama.
    """

    model_config = ConfigDict(extra="forbid")

    path: Path
    alias: str | None = None
    context: int = Field(default=DEFAULT_CONTEXT, ge=0)
    parallel: int = Field(default=4, ge=1, le=64)
    queue: int = Field(default=64, ge=0)
    chunk: int = Field(default=48, ge=1)
    drafts: int | None = Field(default=None, ge=0)
    draft: Path | None = None
    threads: int | None = Field(default=None, ge=1)
    chat_format: str | None = None
    fallback: Path | None = None
    runtime: dict[str, Any] = Field(default_factory=dict)
    load: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The alias, or what stands for it."""
        return self.alias or self.path.name.removesuffix(".gguf").removesuffix(".seeddelta")


class ServeOptions(BaseModel):
    """The server.

    Attributes:
        models: the first one answers requests that name none.
        host, port: where it listens; port 0 takes a free one.
        api_key: what clients must send; None lets everybody in. SEEDDELTA_API_KEY is taken when it is left out.
        cors: origins of web pages that may ask; none when empty.
        grace: seconds that replies have to end when the server is stopped.
    """

    model_config = ConfigDict(extra="forbid")

    models: list[ModelOptions] = Field(min_length=1)
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_key: str | None = Field(default_factory=lambda: os.environ.get("SEEDDELTA_API_KEY") or None)
    cors: list[str] = Field(default_factory=list)
    grace: float = Field(default=30.0, ge=0)


def make_options(values: dict[str, Any], origin: str = "options") -> ServeOptions:
    """Checked options. Raises ConfigError naming the first one that is wrong."""
    try:
        options = ServeOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{origin}: {where}: {first['msg']}") from error
    names = [model.name for model in options.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{origin}: two models are called {twice[0]!r}; give one an alias")
    return options


def read_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Values of a YAML or JSON file, unchecked. Raises ConfigError when it cannot be read."""
    try:
        values = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a YAML file") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must be a mapping of options")
    return values
