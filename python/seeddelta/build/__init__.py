"""Turn a dense GGUF model into a SeedΔ file: `build(Recipe(input=…, output=…))`. Needs the extra `cli` or `llama`."""

from __future__ import annotations

try:
    import gguf as _gguf  # noqa: F401
    import pydantic as _pydantic  # noqa: F401
except ModuleNotFoundError as _error:
    from ..errors import MissingDependencyError

    raise MissingDependencyError(f"{_error.name} is not installed; run: pip install 'seeddelta[cli]'") from _error

from .._callable import make_callable
from .pipeline import build
from .recipe import Recipe
from .report import BuildReport, TensorReport

__all__ = ["BuildReport", "Recipe", "TensorReport", "build"]

make_callable(__name__)
