"""Packages that are functions too.

`seeddelta.evaluate` names a folder and what it does. Importing anything from the folder makes the name the package, so
the package itself has to be callable for `seeddelta.evaluate(models)` to work at any time.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(name: str) -> None:
    """Let calling the package `name` call its function of the same name, with its signature and help."""
    package = sys.modules[name]
    function = getattr(package, name.rpartition(".")[2])
    package.__class__ = _CallableModule
    package.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    package.__doc__ = function.__doc__
