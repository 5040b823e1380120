"""Turn a dense GGUF model into a SeedΔ file: `build(Recipe(input=…, output=…))`. Needs the extra `cli` or `llama`."""

from __future__ import annotations

from .. import gguf as _gguf  # first: it says what to install when a package is missing  # noqa: F401
from .pipeline import build
from .recipe import Recipe
from .report import BuildReport, TensorReport

__all__ = ["BuildReport", "Recipe", "TensorReport", "build"]
