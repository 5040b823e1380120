"""SeedΔ models inside a stock llama-cpp-python: `load` gives a `llama_cpp.Llama`. Needs the extra `llama`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..settings.attention import StatePackKV
from ..settings.runtime import RuntimeConfig
from ..settings.skipping import EventDriven, Kwta, StatePackMLP

if TYPE_CHECKING:
    from .model import SeedDeltaLlama

__all__ = ["EventDriven", "Kwta", "RuntimeConfig", "StatePackKV", "StatePackMLP", "load"]


def load(
    path: str | os.PathLike[str],
    *,
    fallback: str | os.PathLike[str] | None = None,
    config: RuntimeConfig | Mapping[str, Any] | None = None,
    statecells: bool = False,
    parallel: int = 1,
    lora: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    verbose: bool = False,
    **llama_kwargs: Any,
) -> SeedDeltaLlama:
    """Load a SeedΔ model, or any other GGUF model, as a `llama_cpp.Llama`.

    Args:
        path: the model, or its address hf://owner/name[:file-or-type] on the Hugging Face hub. A GGUF file that is not
            a SeedΔ file gives an ordinary model with `.seeddelta.enabled` False.
        fallback: the original model, for weights that give NaN; the same as `config.fallback`, which it replaces.
        config: what the run time does: a RuntimeConfig, or its options as a dict.
        statecells: refuse a model without StateCells weights; the same as `config.statecells`.
        parallel: sequences that the context holds at once, each of `n_ctx / parallel` positions; `Llama`'s own methods
            use the first one, `seeddelta.serve.Scheduler` all of them.
        lora: LoRA adapters (GGUF), `FILE` or `FILE:SCALE`, added to those of `config.lora`; also to SeedΔ weights.
        verbose: llama.cpp's log on stderr.
        llama_kwargs: keywords of `llama_cpp.Llama` (`n_ctx`, `embedding`, …). `n_threads` is by default half of the
            cores, as in `Llama`; the command line takes all.
    Returns:
        A `llama_cpp.Llama` whose attribute `seeddelta` is a RuntimeHandle.
    Raises:
        MissingFileError: there is no such file.
        FormatError, UnsupportedVersionError: the file is no well-formed SeedΔ file of a known version, or has no
            StateCells weights though `statecells` asks for them.
        UnsupportedLlamaError: the installed llama.cpp does not behave as the hook needs it to.
        SourceModelError: the fallback does not fit, or a tensor needs one and none is given; or `config.columns` is
            for a model whose matrices cannot be by columns.
        HubError: an address of which the hub gives no model.
        ConfigError: options of `config` do not fit each other, the keywords or the model.
        MissingDependencyError: llama-cpp-python or gguf is not installed.

    Examples:
        >>> llm = seeddelta.load("model.seeddelta.gguf", n_ctx=2048)
        >>> llm("The capital of France is", max_tokens=8)["choices"][0]["text"]
    """
    from ..errors import MissingDependencyError

    try:
        from .model import SeedDeltaLlama
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{error.name} is not installed; run: pip install 'seeddelta[llama]'") from error
    return SeedDeltaLlama(
        os.fspath(path),
        fallback=fallback,
        config=config,
        statecells=statecells,
        parallel=parallel,
        lora=lora,
        verbose=verbose,
        **llama_kwargs,
    )
