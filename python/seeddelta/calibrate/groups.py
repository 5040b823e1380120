"""Which blocks of a model can be run without the others: one at a time, some at a time, or none.

A model's text says what llama.cpp makes of a block by its number (windows of attention, experts, recurrent layers), and
much of it is in the code alone. So it is tried: the first chunk of the text goes through the whole model and through
views of 1, 2, 3, … consecutive blocks, and the first size whose outputs are those of the whole model is taken.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..children import python_command
from ..errors import FormatError, ImatrixError
from ..gguf.source import SourceModel, open_source
from ..gguf.targets import computed_layers
from .block_run import BlockRun, open_hooked

F32 = npt.NDArray[np.float32]
SIZES = (1, 2, 3, 4, 5, 6, 8, 12)  # periods of the patterns that llama.cpp's models have
_SAME = 1e-5  # relative difference of the outputs; they are equal as a rule, and a wrong kind of block differs by 0.01
_SAYS = "seeddelta blocks: "  # before the lines of the trial
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


def group_sha256(source: SourceModel, group: Group) -> str:
    """SHA-256 of the tensors of a group, in hexadecimal."""
    digest = hashlib.sha256()
    blocks = tuple(f"blk.{block}." for block in range(group.first, group.last))
    for name in sorted(source.tensors):
        if name.startswith(blocks):
            digest.update(name.encode())
            digest.update(source.raw(name).data)
    return digest.hexdigest()


def groups_of(n_layers: int, size: int, scale: float = 1.0) -> list[Group]:
    return [Group(first, min(first + size, n_layers), scale) for first in range(0, n_layers, size)]


def find_groups(source: SourceModel, window: npt.NDArray[np.int32], threads: int = 0) -> list[Group] | None:
    """Groups of as few blocks as can be run alone, or None when the model has to be run as a whole.

    `window` int32[n] are the tokens of a chunk. It is tried in another process: a graph without some kinds of blocks is
    one that llama.cpp does not expect, and its asserts end the process (llama4, models with recurrent blocks). Raises
    ImatrixError when that process cannot be run at all, or the whole model ends it.
    """
    sizes = list(_sizes(source))
    while sizes:
        answer, tried = _try_elsewhere(source, window, threads, sizes)
        if answer is not None:
            return None if answer == "none" else [Group(*group) for group in json.loads(answer)]
        sizes = [size for size in sizes if size > max(tried, default=sizes[-1])]
    return None


def check_computed(source: SourceModel, threads: int = 0) -> None:
    """Compute a few tokens in another process.

    Raises ImatrixError when llama.cpp ends it, as it would this one, and FormatError where that is known before.
    """
    _core.check_loadable(source.path)
    _try_elsewhere(source, np.zeros(4, np.int32), threads, [])


def _try_elsewhere(
    source: SourceModel, window: npt.NDArray[np.int32], threads: int, sizes: list[int]
) -> tuple[str | None, list[int]]:
    """What `_main` says of the sizes, None when its process ended, and the sizes that it came to."""
    command = python_command("from seeddelta.calibrate import groups; groups._main()")
    question = json.dumps([str(source.path), window.tolist(), threads, sizes])
    environment = {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"} | os.environ
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, text=True, errors="replace",
            env=environment,
        )  # fmt: skip
    except OSError as error:
        raise ImatrixError(f"{source.path}: {sys.executable} cannot be run to try the blocks ({error})") from error
    said = [line.removeprefix(_SAYS) for line in done.stdout.splitlines() if line.startswith(_SAYS)]
    if done.returncode == 0 and said:
        return said[-1], []
    _log.info("a trial of the blocks of %s ended with %d: %s", source.path, done.returncode, done.stderr[-500:])
    if not said:  # it was the whole model
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "ASSERT" in line), lines[-1] if lines else "it said nothing")
        if ": " in reason and reason.startswith("seeddelta.errors."):
            raise ImatrixError(reason.partition(": ")[2])
        raise ImatrixError(f"{source.path}: llama.cpp cannot compute this model: {reason}")
    return None, [int(line) for line in said]


def _main() -> None:
    """The trial: a line for each size that is come to, at the end the groups, or none."""
    path, window, threads, sizes = json.load(sys.stdin)

    def say(text: object) -> None:
        print(f"{_SAYS}{text}", flush=True)

    found = _groups_of_sizes(open_source(path), np.asarray(window, np.int32), threads, sizes, say)
    say("none" if found is None else json.dumps([[one.first, one.last, one.scale] for one in found]))


def _sizes(source: SourceModel) -> Iterator[int]:
    n_layers = computed_layers(source.header) or 0
    return (size for size in SIZES if size == 1 or size < n_layers)


def _groups_of_sizes(
    source: SourceModel, window: npt.NDArray[np.int32], threads: int, sizes: list[int], come_to: Callable[[int], object]
) -> list[Group] | None:
    n_layers = computed_layers(source.header) or 0
    whole = _outputs(source, window, n_layers, threads)
    if whole is None:
        return None
    for size in sizes:
        come_to(size)
        for scale in (1.0, whole[0].shape[1] ** -0.5):
            groups = groups_of(n_layers, size, scale)
            if all(_is_same(source, group, window, whole, threads) for group in groups):
                return groups
    return None


def _outputs(source: SourceModel, window: npt.NDArray[np.int32], n_layers: int, threads: int) -> list[F32] | None:
    """Hidden states after each block of the whole model, or None when its graph does not tell them."""
    from ..runtime.library import loaded_ggml
    from ..session import refuse_encoder_decoder
    from ..session.decoder import Decoder

    hook = _core.CaptureHook(loaded_ggml(), [], False, taken=[f"l_out-{i}" for i in range(n_layers)])
    llm = open_hooked(str(source.path), hook, len(window), threads)
    try:
        refuse_encoder_decoder(llm)
        Decoder(llm).decode(window, 0, slice(0, len(window)))
        if hook.error:  # they have another form, as in gemma3n, or the model does not run: the capture will say so
            _log.info("%s: %s", source.path, hook.error)
            return None
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
