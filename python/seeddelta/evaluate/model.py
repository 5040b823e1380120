"""Open a model for a measurement: SeedΔ or plain GGUF, with the settings that make measurements comparable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EvaluationError, SeedDeltaError

if TYPE_CHECKING:
    import llama_cpp


def open_model(
    path: str | os.PathLike[str], *, n_ctx: int = 512, n_batch: int = 512, threads: int | None = None, **options: Any
) -> llama_cpp.Llama:
    """The model as a `llama_cpp.Llama`, quiet, with flash attention on as llama-perplexity has it.

    `threads` is used for prompts and for generation (default: all cores). `options` go to `seeddelta.load`.
    Raises EvaluationError when there is no such file or llama.cpp refuses it, MissingDependencyError without
    llama-cpp-python, and what `seeddelta.load` raises.
    """
    path = Path(path)
    if not path.is_file():
        raise EvaluationError(f"{path}: no such file; give a GGUF model")
    from ..runtime import load

    threads = threads or os.cpu_count() or 1
    settings: dict[str, Any] = {"n_threads": threads, "n_threads_batch": threads, "flash_attn": True, "verbose": False}
    try:
        return load(path, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(n_batch, 512), **(settings | options))
    except SeedDeltaError:
        raise
    except (ValueError, RuntimeError) as error:
        raise EvaluationError(f"{path}: llama.cpp cannot load it ({error}); is it complete?") from error
