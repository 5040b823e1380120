"""Which blocks of a model can be run without the others: one at a time, some at a time, or none.

A model's text says what llama.cpp makes of a block by its number (windows of attention, experts, recurrent layers), and
much of it is in the code alone. So it is tried: the first chunk of the text goes through the whole model and through
views of 1, 2, 3, … consecutive blocks, and the first size whose outputs are those of the whole model is taken.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..errors import FormatError, ImatrixError
from ..gguf.source import SourceModel
from ..gguf.targets import computed_layers
from .block_run import BlockRun, open_hooked

F32 = npt.NDArray[np.float32]
SIZES = (1, 2, 3, 4, 5, 6, 8, 12)  # periods of the patterns that llama.cpp's models have
_SAME = 1e-5  # relative difference of the outputs; they are equal as a rule, and a wrong kind of block differs by 0.01
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Group:
    """The blocks `first` to `last` - 1, which are run together.

    Hidden states that are fed to them are multiplied by `scale` first: gemma and gemma2 multiply whatever comes, as if
    it were an embedding, by sqrt(n_embd).
    """

    first: int
    last: int
    scale: float = 1.0


def groups_of(n_layers: int, size: int, scale: float = 1.0) -> list[Group]:
    return [Group(first, min(first + size, n_layers), scale) for first in range(0, n_layers, size)]


def find_groups(source: SourceModel, window: npt.NDArray[np.int32], threads: int = 0) -> list[Group] | None:
    """Groups of as few blocks as can be run alone, or None when the model has to be run as a whole.

    `window` int32[n] are the tokens of a chunk. Raises ImatrixError when the model itself does not run.
    """
    n_layers = computed_layers(source.header) or 0
    whole = _outputs(source, window, n_layers, threads)
    if whole is None:
        return None
    for size in (size for size in SIZES if size == 1 or size < n_layers):
        for scale in (1.0, whole[0].shape[1] ** -0.5):
            groups = groups_of(n_layers, size, scale)
            if all(_is_same(source, group, window, whole, threads) for group in groups):
                return groups
    return None


def _outputs(source: SourceModel, window: npt.NDArray[np.int32], n_layers: int, threads: int) -> list[F32] | None:
    """Hidden states after each block of the whole model, or None when its graph does not tell them."""
    from ..runtime.library import ggml_abi

    hook = _core.CaptureHook(ggml_abi(), [], False, taken=[f"l_out-{i}" for i in range(n_layers)])
    llm = open_hooked(str(source.path), hook, len(window), threads)
    try:
        llm.eval(window.tolist())
        if hook.error:
            raise ImatrixError(f"{source.path}: {hook.error}")
        return [hook.values(f"l_out-{i}") for i in range(n_layers)]
    except KeyError:
        return None
    finally:
        llm.close()


def _is_same(source: SourceModel, group: Group, window: npt.NDArray[np.int32], whole: list[F32], threads: int) -> bool:
    options: dict[str, Any] = {"vocabulary": np.unique(window)} if group.first == 0 else {}
    try:
        with BlockRun(source, group.first, group.last, ctx=len(window), threads=threads, **options) as run:
            found = run.run(window if group.first == 0 else group.scale * whole[group.first - 1])
    except (ImatrixError, FormatError) as error:
        _log.info("%s", error)
        return False
    expected = whole[group.last - 1]
    if found.shape != expected.shape:
        return False
    return float(np.linalg.norm(found - expected)) <= _SAME * float(np.linalg.norm(expected))
