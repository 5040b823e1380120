"""A model measured block by block: one group of blocks in memory at a time, the hidden states of the text on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf import names
from ..gguf.source import SourceModel
from .block_run import BlockRun
from .block_view import view_name
from .capture import Capture
from .groups import Group
from .states import States, write_states
from .sums import PassSums, StoredSums
from .text import Windows

# Chunks of a range: of the 48 that a model is measured on as a rule, 2 and 4 workers have as much to do each. A job
# loads its layers and writes its sums, which takes as long as half a chunk.
RANGE = 12


def range_stream(number: int) -> str:
    """Name of the hidden states of a range (see states_name)."""
    return f"dense.{number}"


def states_name(block: int, stream: str = "dense") -> str:
    """Name of the file of the hidden states of a stream that go into a block."""
    return f"{stream}-{block}.f32"


class BlockEngine:
    """Takes a text through a model, a group of blocks at a time; `folder` has the hidden states between them.

    `groups` are all groups of the model in order (see `find_groups`), `stream` names the hidden states. The results
    depend on the model and the text alone: not on threads, on how often a group is run again, or on the process that
    ran the one before.
    """

    def __init__(
        self,
        source: SourceModel,
        windows: Windows,
        groups: list[Group],
        folder: Path,
        *,
        threads: int = 0,
        stream: str = "dense",
    ) -> None:
        self.source, self.windows, self.groups, self.folder = source, windows, groups, folder
        self.threads, self.stream = threads, stream
        architecture = source.metadata.scalar("general.architecture", str, "")
        self.n_embd = int(source.metadata[f"{architecture}.embedding_length"])

    def states_before(self, block: int) -> States:
        """Hidden states that go into a block; those before block 0 are the embedding's and have no file."""
        return States(self.folder / states_name(block, self.stream), self.windows.ctx, self.n_embd)

    def range_states(self, block: int) -> list[States]:
        """What the jobs have written to go into a block."""
        return [self.of_range(number).states_before(block) for number, _ in self.ranges()]

    def of_range(self, number: int) -> BlockEngine:
        """An engine for what the job of this range takes through the model."""
        tokens = dict(self.ranges())[number]
        windows = Windows(tokens, self.windows.name, self.windows.sha256)
        stream = range_stream(number)
        return BlockEngine(self.source, windows, self.groups, self.folder, threads=self.threads, stream=stream)

    def ranges(self) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
        """Number and tokens of the ranges of the text."""
        for begin in range(0, self.windows.chunks, RANGE):
            yield begin // RANGE, self.windows.tokens[begin : begin + RANGE]

    def matrices(self, group: Group) -> list[str]:
        """Names of all tensors that the group's view has: its blocks', and of the last group the output matrix."""
        head = names.HEAD if names.HEAD in self.source.tensors else names.EMBEDDING
        last = group == self.groups[-1]
        return [
            name
            for name in self.source.tensors
            if (name.startswith("blk.") and view_name(name, group.first, group.last) is not None)
            or (last and name == head)
        ]

    def open(self, group: Group, **options: Any) -> BlockRun:
        """A group as a BlockRun with these options of its own, to be fed with what `fed` gives."""
        begins: dict[str, Any] = {"vocabulary": self.windows.vocabulary} if group.first == 0 else {}
        shared = {"threads": self.threads, "ctx": self.windows.ctx}
        return BlockRun(self.source, group.first, group.last, **(shared | begins | options))

    def fed(self, group: Group, chunk: int) -> npt.NDArray[Any]:
        """What a chunk of the text is when it comes to a group: tokens int32[ctx], or float32[ctx, n_embd]."""
        if group.first == 0:
            return np.asarray(self.windows.tokens[chunk])
        return np.asarray(np.float32(group.scale) * self.states_before(group.first).read(chunk))

    @contextmanager
    def run(
        self, group: Group, summed: Iterable[str], *, keep: bool = True, chunks: int | None = None, **options: Any
    ) -> Iterator[BlockRun]:
        """Run a group over the text (its first `chunks`); gives the run with the sums of the inputs of `summed`.

        With `keep` the hidden states after the group are kept for the next one. `options` are those of BlockRun.
        Raises as BlockRun, and OutputError when the states cannot be written.
        """
        with self.open(group, summed=summed, **options) as run, ExitStack() as stack:
            writer = None
            if keep and group != self.groups[-1]:
                writer = stack.enter_context(write_states(self.states_before(group.last)))
            for chunk in range(self.windows.chunks if chunks is None else chunks):
                after = run.run(self.fed(group, chunk))
                if writer is not None:
                    writer.add(after)
            stack.close()
            yield run

    def capture(self, run: BlockRun | PassSums | StoredSums, model_sha256: str) -> Capture:
        """What a run or its jobs have summed, in the form of the whole model's capture."""
        counted = [run.tokens(name) for name in set(run.representatives.values())]
        return Capture(
            hook=run,
            representatives=run.representatives,
            tokens=max(counted, default=0),
            chunks=self.windows.chunks,
            ctx=self.windows.ctx,
            model_name=self.source.path.name,
            model_sha256=model_sha256,
            text_name=self.windows.name,
            text_sha256=self.windows.sha256,
            covariance=True,
        )
