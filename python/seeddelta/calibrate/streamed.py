"""The capture of a model whose blocks are run by themselves: the sums of one group of blocks in memory at a time.

Those of the groups that are done lie in a folder, so that a capture that was stopped goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..gguf.source import SourceModel, file_sha256, open_source
from ..storage.checkpoint import Record, Store
from ..storage.output import output_error
from .capture import Capture, known_inputs, wanted_matrices
from .engine import BlockEngine
from .groups import Group, find_groups
from .passes import pass_jobs, run_pass
from .sums import PassSums, StoredSums, sums_arrays, sums_state
from .text import Windows, read_windows


@contextmanager
def capture_streamed(
    model_path: str | os.PathLike[str],
    text: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    ctx: int = 512,
    chunks: int | None = None,
    targets: str | None = None,
    layers: str | None = None,
    threads: int = 0,
    resume: bool = True,
    progress: bool = True,
) -> Iterator[Capture | None]:
    """What `capture` sums with covariances, or None when the blocks do not run by themselves.

    The sums lie in `folder` while the block of the context manager runs; they go when it ends without an exception, and
    otherwise the same call goes on from there. Needs half a covariance file and the text's hidden states there.
    Arguments and errors are those of `capture`, and OutputError for the folder.
    """
    source = open_source(model_path)
    wanted = wanted_matrices(source.header, targets, layers)
    windows = read_windows(source.path, text, Path(text).name, ctx, chunks, spread=False)
    groups = find_groups(source, windows.tokens[0], threads)
    if groups is None:
        yield None
        return
    with Store(Path(folder), busy="another imatrix with this output is running; wait for it", resume=resume) as store:
        work = _Groups(source, windows, groups, wanted, store, threads=threads)
        sums = StoredSums(work.records(progress))
        yield replace(
            work.engine.capture(sums, work.model_sha256),
            representatives=known_inputs(source.path, wanted, sums.representatives),
        )
        store.finish()


_FOLDER = "states"  # hidden states and a group's sums, in the folder of the records


class _Groups:
    """The groups up to the last that has a matrix that is wanted; `engine` takes the text through them."""

    def __init__(
        self,
        source: SourceModel,
        windows: Windows,
        groups: list[Group],
        wanted: list[str],
        store: Store,
        *,
        threads: int,
    ) -> None:
        self.store, self.threads = store, threads
        self.engine = BlockEngine(source, windows, groups, store.folder / _FOLDER, threads=threads)
        self.model_sha256 = file_sha256(source.header.parts)
        self._identity: dict[str, Any] = dict(
            model=self.model_sha256, text=windows.identity(), names=wanted,
            groups=[[group.first, group.last, group.scale] for group in groups],
        )  # fmt: skip
        there = [set(self.engine.matrices(group)) for group in groups]
        self._wanted = [[name for name in wanted if name in names] for names in there]
        self._last = max((n for n, names in enumerate(self._wanted) if names), default=-1)

    def records(self, progress: bool) -> list[Record]:
        """The sums of all groups, of which an earlier run may have made some."""
        from ..progress import tqdm

        groups = self.engine.groups[: self._last + 1]
        records = [self._record(group) for group in groups]
        done = records.index(None) if None in records else len(records)
        if 0 < done < len(groups) and not all(states.path.is_file() for states in self._states(groups[done])):
            done = 0
        if not done:
            shutil.rmtree(self.engine.folder, ignore_errors=True)
        try:
            self.engine.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise output_error(self.engine.folder, error) from error
        found = [record for record in records[:done] if record is not None]
        with tqdm(desc="imatrix", unit="block", total=len(groups), initial=done, disable=not progress) as bar:
            for number in range(done, len(groups)):
                found.append(self._run(number))
                bar.update()
        shutil.rmtree(self.engine.folder, ignore_errors=True)
        return found

    def _record(self, group: Group) -> Record | None:
        name = self._name(group)
        return self.store.load(name, self._identity) if self.store.has(name) else None

    @staticmethod
    def _name(group: Group) -> str:
        return f"blocks-{group.first}"

    def _states(self, group: Group) -> list[Any]:
        return self.engine.range_states(group.first)

    def _run(self, number: int) -> Record:
        group, wanted = self.engine.groups[number], self._wanted[number]
        with PassSums(self.engine.folder) as sums:
            for job in pass_jobs(self.engine, group, wanted, keep=number < self._last, threads=self.threads):
                record = run_pass(job)
                if record is not None:
                    sums.add(record)
            done = self.store.save(self._name(group), self._identity, sums_state(sums), sums_arrays(sums))
        for states in self._states(group):
            states.remove()
        return done
