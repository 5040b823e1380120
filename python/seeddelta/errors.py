"""Exceptions of seeddelta. Each message names the file, the tensor where there is one, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class SeedDeltaError(Exception):
    """Base class of every exception that seeddelta raises on purpose."""


class FormatError(SeedDeltaError):
    """A file is truncated, corrupt, or not what its header says."""


class MissingFileError(SeedDeltaError, FileNotFoundError):
    """A file to read is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.strerror = "No such file or directory"


class UnsupportedVersionError(FormatError):
    """A SeedΔ file of a version, base kind or scheme that this release does not know."""


class UnsupportedLlamaError(SeedDeltaError):
    """The loaded llama.cpp does not behave as the run-time hook needs it to."""


class SourceModelError(SeedDeltaError):
    """The source model cannot be converted: unknown type, NaN weights, no target tensor, wrong shape."""


class ModelError(SeedDeltaError):
    """A model to run is not there, or llama.cpp cannot load it."""


class HubError(SeedDeltaError):
    """The Hugging Face hub does not give a model: no access, no such file, more than one that fits, no network."""


class ImatrixError(SeedDeltaError):
    """An importance matrix is unreadable, lacks an entry, or does not fit the model."""


class CalibrationWarning(UserWarning):
    """An importance matrix or a covariance lacks some of the tensors; the message has their names."""


class MemoryWarning(UserWarning):
    """A single matrix takes more memory to encode than was given; the message has its name and the size."""


class RecipeWarning(UserWarning):
    """An option of a build is of no effect; the message has it and the reason."""


class RecipeError(SeedDeltaError, ValueError):
    """The options of a build contradict each other or are out of range."""


class ConfigError(SeedDeltaError, ValueError):
    """Options of the run time contradict each other, are out of range, or do not fit the model."""


class NotAvailableError(SeedDeltaError, NotImplementedError):
    """An option that is specified but not available in this release."""


class OutputError(SeedDeltaError, OSError):
    """An output file cannot be written. An existing file of that name is left as it was."""


class NumericalError(SeedDeltaError, ArithmeticError):
    """NaN or infinity met while computing with a weight, and no dense fallback is at hand."""


class OutOfMemoryError(SeedDeltaError, MemoryError):
    """No memory for what the next computation needs; nothing was computed."""


class ChangedFileError(SeedDeltaError):
    """A model file was changed or truncated while it was in use; what was computed since does not count."""


class ForkedProcessError(SeedDeltaError, RuntimeError):
    """A model is used in a child of the process that loaded it."""


class EvaluationError(SeedDeltaError):
    """A model, a text or a process does not allow a measurement: too few tokens, a failed decode, a dead worker."""


class MissingDependencyError(SeedDeltaError, ImportError):
    """An optional dependency is not installed; the message has the pip line that installs it."""


class ExecutorError(SeedDeltaError):
    """The workers of a build cannot be reached, differ from this process, or died more than once on one tensor."""


class RequestError(SeedDeltaError, ValueError):
    """A request to a served model cannot be answered: too long a prompt, a grammar or an option that is wrong.

    `code` is what OpenAI's API calls it, where it has a name for it.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnknownModelError(RequestError):
    """A request names a model that is not served; the message says which are."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "model_not_found")


class BusyError(SeedDeltaError):
    """A served model has no room for another request now; the message says when to come again."""


class IdleWeightsWarning(UserWarning):
    """Some converted weights are not used by llama.cpp's graph. They are harmless and take space."""


def one_line(text: object) -> str:
    """A text for a terminal, from whatever file it came: without line ends, and with signs of control spelled out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in " ".join(str(text).split()))


def some(names: Sequence[str], most: int = 4) -> str:
    """The first of many names for a message: `'a', 'b', 'c', 'd' and 12 others`."""
    text = ", ".join(repr(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} others"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports of packages that the extra installs: ModuleNotFoundError becomes MissingDependencyError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingDependencyError(f"{package} is not installed; run: pip install 'seeddelta[{extra}]'") from error
