"""A range of the text through a group of layers, as a job that any process can carry out."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import ExecutorError, ImatrixError, SourceModelError
from ..gguf.source import open_source
from ..storage.checkpoint import Record, write_record
from .engine import BlockEngine, range_stream
from .groups import Group, group_sha256
from .sums import sums_arrays, sums_state
from .text import Windows


@dataclass(frozen=True)
class PassJob:
    """Takes `tokens` int32[chunks, ctx], range `number` of the text, through a group of the model at `path`.

    `summed` are the matrices whose inputs are summed. With `keep` the hidden states after the group are written to
    `folder`, where those before it are; the sums go there, too. `sha256` is that of the group's tensors.
    """

    path: Path
    sha256: str
    groups: tuple[Group, ...]
    group: Group
    number: int
    tokens: npt.NDArray[np.int32]
    folder: Path
    summed: tuple[str, ...]
    keep: bool
    threads: int
    version: str = __version__

    @property
    def label(self) -> str:
        return f"blocks {self.group.first} to {self.group.last - 1}, range {self.number} of the text"


def run_pass(job: PassJob) -> Record | None:
    """Carry out a job, in any thread of any process; gives the file of the sums, None without `summed`.

    Raises as BlockEngine.run, SourceModelError when the model is not the one that the job was made for, ImatrixError
    when the folder is not there, ExecutorError when another release of seeddelta made the job.
    """
    node = platform.node()
    if job.version != __version__:
        raise ExecutorError(f"a worker on {node} has seeddelta {__version__}, the run {job.version}; install the same")
    if not job.path.is_file():
        raise SourceModelError(f"{job.path}: no such file on {node}; workers need the model under this path")
    if not job.folder.is_dir():
        raise ImatrixError(f"{job.folder}: no such folder on {node}; workers need the folder of the output, too")
    source = open_source(job.path)
    if group_sha256(source, job.group) != job.sha256:
        raise SourceModelError(
            f"{job.path}: the {job.label} on {node} are not those the run began with; "
            "do not change the model during a run, and give all workers the same file"
        )
    windows = Windows(job.tokens, "", "")
    engine = BlockEngine(
        source, windows, list(job.groups), job.folder, threads=job.threads, stream=range_stream(job.number)
    )
    with engine.run(job.group, job.summed, keep=job.keep) as run:
        if not job.summed:
            return None
        return write_record(job.folder / f"sums-{job.number}", None, sums_state(run), sums_arrays(run))


def pass_jobs(
    engine: BlockEngine, group: Group, summed: Iterable[str], *, keep: bool, threads: int
) -> Iterator[PassJob]:
    """The text through a group as jobs; PassSums adds their results. The hidden states of a range are its own."""
    keep = keep and group != engine.groups[-1]
    sha256 = group_sha256(engine.source, group)
    for number, tokens in engine.ranges():
        yield PassJob(
            engine.source.path.absolute(), sha256, tuple(engine.groups), group, number, tokens,
            engine.folder.absolute(), tuple(summed), keep, threads,
        )  # fmt: skip
