"""Optional dependencies: a missing one is an error that says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingDependencyError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports of packages that the extra installs: ModuleNotFoundError becomes MissingDependencyError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingDependencyError(f"{package} is not installed; run: pip install 'seeddelta[{extra}]'") from error
