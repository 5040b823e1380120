"""seeddelta: LLM weights in 2 to 6 bits, computed by its own kernels inside a stock llama-cpp-python.

`import seeddelta` needs NumPy alone. What needs more is loaded when it is first used:

    seeddelta.quantize("model-f16.gguf", "model.seeddelta.gguf", bits=4)
    llm = seeddelta.load("model.seeddelta.gguf")
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import SeedDeltaError

__version__ = "0.1.0"

# public name -> module that defines it
_LAZY = {
    "BuildReport": "seeddelta.convert.report",
    "Recipe": "seeddelta.convert.recipe",
    "build": "seeddelta.convert.pipeline",
    "RuntimeConfig": "seeddelta.runtime",
    "StatePackKV": "seeddelta.runtime",
    "load": "seeddelta.runtime",
    "SeedDeltaLlama": "seeddelta.runtime.model",
    "quantize": "seeddelta.convert.quantize",
    "dequantize": "seeddelta.gguf.dequantize",
    "imatrix": "seeddelta.calibrate",
    "open_seeddelta": "seeddelta.gguf.reader",
    "bench": "seeddelta.evaluate",
    "evaluate": "seeddelta.evaluate",
    "perplexity": "seeddelta.evaluate",
}

__all__ = [
    "BuildReport",
    "Recipe",
    "RuntimeConfig",
    "SeedDeltaError",
    "SeedDeltaLlama",
    "StatePackKV",
    "__version__",
    "bench",
    "build",
    "cmake_dir",
    "dequantize",
    "errors",
    "evaluate",
    "imatrix",
    "load",
    "open_seeddelta",
    "perplexity",
    "quantize",
]

if TYPE_CHECKING:
    from .calibrate import imatrix
    from .convert.pipeline import build
    from .convert.quantize import quantize
    from .convert.recipe import Recipe
    from .convert.report import BuildReport
    from .evaluate import bench, evaluate
    from .evaluate.perplexity import perplexity
    from .gguf.dequantize import dequantize
    from .gguf.reader import open_seeddelta
    from .runtime import RuntimeConfig, StatePackKV, load
    from .runtime.model import SeedDeltaLlama


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'seeddelta' has no attribute {name!r}")
    loaded = importlib.import_module(module)
    # evaluate is a package that can be called; anything else is an attribute of its module
    value = loaded if module == f"{__name__}.{name}" and callable(loaded) else getattr(loaded, name)
    globals()[name] = value
    return value


def cmake_dir() -> str:
    """Folder of the CMake package of the C++ API, for `cmake -Dseeddelta_DIR=…` and `find_package(seeddelta)`."""
    return str(Path(__file__).parent / "cmake")


def __dir__() -> list[str]:
    return sorted(__all__)
