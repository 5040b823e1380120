"""Interpreters that this process starts: they find what it finds, and import nothing from the working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SAFE = "PYTHONSAFEPATH"  # from Python 3.11 on: as the option -P
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[1])


def python_command(program: str) -> list[str]:
    """The command of an interpreter that runs a program with the module path of this one."""
    paths = list(dict.fromkeys([_PACKAGE_PARENT, *(path for path in sys.path if path)]))
    return [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {program}"]


@contextmanager
def safe_children() -> Iterator[None]:
    """Interpreters that a library starts meanwhile leave the working folder out of their module path."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE, None)
        else:
            os.environ[_SAFE] = before
