"""The models of a server, by alias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ConfigError, UnknownModelError
from ..settings.serving import ModelOptions
from .scheduler import Scheduler


class Models:
    """Opened models with a scheduler each. Close it to free them.

    Raises what `seeddelta.load` raises; then nothing stays open.
    """

    def __init__(self, options: Sequence[ModelOptions]) -> None:
        self._schedulers: dict[str, Scheduler] = {}
        try:
            for one in options:
                self._schedulers[one.name] = open_scheduler(one)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[tuple[str, Scheduler]]:
        return iter(self._schedulers.items())

    def find(self, alias: str | None) -> tuple[str, Scheduler]:
        """A model and its name; the first one for None. Raises UnknownModelError."""
        name = alias or next(iter(self._schedulers))
        if name not in self._schedulers:
            raise UnknownModelError(f"model {name!r} is not served; served: {', '.join(self._schedulers)}")
        return name, self._schedulers[name]

    @property
    def room(self) -> int:
        """Requests that can be at work or wait, of all models."""
        return sum(scheduler.parallel + scheduler.queue_limit for _, scheduler in self)

    def drain(self) -> None:
        for _, scheduler in self:
            scheduler.drain()

    def cancel_all(self) -> None:
        for _, scheduler in self:
            scheduler.cancel_all()

    def close(self) -> None:
        for scheduler in self._schedulers.values():
            scheduler.close()
            scheduler.llm.close()
        self._schedulers = {}


def open_scheduler(options: ModelOptions) -> Scheduler:
    """Load one model with room for its requests."""
    from ..session import open_model

    settings: dict[str, Any] = dict(options.load)
    if options.chat_format is not None:
        settings["chat_format"] = options.chat_format
    settings["config"] = options.runtime
    context = options.context or _trained_context(options)
    llm = open_model(
        options.path, n_ctx=context * options.parallel, threads=options.threads, parallel=options.parallel, **settings
    )
    try:
        return Scheduler(llm, queue=options.queue, chunk=options.chunk)
    except BaseException:
        llm.close()
        raise


def _trained_context(options: ModelOptions) -> int:
    from ..gguf.model_file import read_header

    metadata = read_header(options.path).metadata
    try:
        return int(metadata[f"{metadata['general.architecture']}.context_length"])
    except KeyError as error:
        raise ConfigError(f"{options.path}: does not say its context ({error}); give --ctx") from error
