"""A model measured block by block: one group of blocks in memory at a time, the hidden states of the text on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..gguf import names
from ..gguf.source import SourceModel
from .block_run import BlockRun
from .block_view import view_name
from .capture import Capture
from .groups import Group
from .states import States, write_states
from .text import Windows


def states_name(block: int) -> str:
    """Name of the file of the hidden states that go into a block."""
    return f"states-{block}.f32"


class BlockEngine:
    """Takes a text through a model, a group of blocks at a time; `folder` has the hidden states between them.

    `groups` are all groups of the model in order (see `find_groups`). The results depend on the model, the text, `skip`
    and `clip` alone: not on threads, on how often a group is run again, or on the process that ran the one before.
    """

    def __init__(
        self,
        source: SourceModel,
        windows: Windows,
        groups: list[Group],
        folder: Path,
        *,
        threads: int = 0,
        skip: int = 0,
        clip: float = 0.0,
    ) -> None:
        self.source, self.windows, self.groups, self.folder = source, windows, groups, folder
        self.skip, self.clip, self.threads = skip, clip, threads
        architecture = source.metadata.scalar("general.architecture", str, "")
        self._n_embd = int(source.metadata[f"{architecture}.embedding_length"])

    def states_before(self, block: int) -> States:
        """Hidden states that go into a block; those before block 0 are the embedding's and have no file."""
        return States(self.folder / states_name(block), self.windows.ctx, self._n_embd)

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

    @contextmanager
    def run(
        self,
        group: Group,
        summed: Iterable[str],
        *,
        covariance: bool = True,
        keep: bool = True,
        chunks: int | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Iterator[BlockRun]:
        """Run a group over the text (its first `chunks`); gives the run with the sums of the inputs of `summed`.

        With `keep` the hidden states after the group are kept for the next one. `progress` is called with the number of
        every chunk. Raises as BlockRun, and OutputError when the states cannot be written.
        """
        begins = group.first == 0
        states = self.states_before(group.first)
        options: dict[str, Any] = {"vocabulary": self.windows.vocabulary} if begins else {}
        options |= {"threads": self.threads, "skip": self.skip, "clip": self.clip, "covariance": covariance}
        with (
            BlockRun(self.source, group.first, group.last, ctx=self.windows.ctx, summed=summed, **options) as run,
            ExitStack() as stack,
        ):
            writer = None
            if keep and group != self.groups[-1]:
                writer = stack.enter_context(write_states(self.states_before(group.last).path))
            for chunk in range(self.windows.chunks if chunks is None else chunks):
                after = run.run(self.windows.tokens[chunk] if begins else group.scale * states.read(chunk))
                if writer is not None:
                    writer.add(after)
                progress(chunk)
            stack.close()
            yield run

    def capture(self, run: BlockRun, model_sha256: str) -> Capture:
        """What a run has summed, in the form of the whole model's capture."""
        counted = [run.tokens(name) for name in set(run.representatives.values())]
        return Capture(
            hook=run,
            representatives=run.representatives,
            tokens=max(counted, default=0),
            chunks=self.windows.chunks,
            ctx=self.windows.ctx,
            skip=self.skip,
            clip=self.clip,
            model_name=self.source.path.name,
            model_sha256=model_sha256,
            text_name=self.windows.name,
            text_sha256=self.windows.sha256,
            covariance=True,
        )
