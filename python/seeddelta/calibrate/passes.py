"""A range of the text through a group of blocks, as a job that any process can carry out, and the sums of all ranges.

A job's sums begin at zero and are written to a file; they are added in the order of the ranges. So the results are the
same bytes wherever the jobs run, and whichever ends first.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..checkpoint import Array, Record, write_record
from ..errors import ExecutorError, ImatrixError, SourceModelError
from ..gguf.source import SourceModel, open_source
from .capture import Sums
from .text import Windows

if TYPE_CHECKING:
    from .groups import Group

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
# Chunks of a job: of the 48 that a model is measured on as a rule, 2 and 4 workers have as much to do each. A job loads
# its blocks and writes its sums, which takes as long as half a chunk.
RANGE = 12
_PANEL = 256  # rows of a covariance that stand together in a file, with the columns from the first of them on


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
    skip: int
    clip: float
    version: str = __version__

    @property
    def label(self) -> str:
        return f"blocks {self.group.first} to {self.group.last - 1}, range {self.number} of the text"


def run_pass(job: PassJob) -> Record | None:
    """Carry out a job, in any thread of any process; gives the file of the sums, None without `summed`.

    Raises as BlockEngine.run, SourceModelError when the model is not the one that the job was made for, ImatrixError
    when the folder is not there, ExecutorError when another release of seeddelta made the job.
    """
    from .engine import BlockEngine

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
        source, windows, list(job.groups), job.folder, threads=job.threads, skip=job.skip, clip=job.clip,
        stream=range_stream(job.number),
    )  # fmt: skip
    with engine.run(job.group, job.summed, keep=job.keep) as run:
        if not job.summed:
            return None
        return write_record(job.folder / f"sums-{job.number}", None, sums_state(run), sums_arrays(run))


def range_stream(number: int) -> str:
    """Name of the hidden states of a range (see engine.states_name)."""
    return f"dense.{number}"


def group_sha256(source: SourceModel, group: Group) -> str:
    """SHA-256 of the tensors of a group, in hexadecimal."""
    digest = hashlib.sha256()
    blocks = tuple(f"blk.{block}." for block in range(group.first, group.last))
    for name in sorted(source.tensors):
        if name.startswith(blocks):
            digest.update(name.encode())
            digest.update(source.raw(name).data)
    return digest.hexdigest()


class _Sums(Sums, Protocol):
    """Sums that know whose they are."""

    @property
    def representatives(self) -> dict[str, str]: ...


def sums_state(sums: _Sums) -> dict[str, Any]:
    """What a record of sums has beside its arrays."""
    inputs = sorted(set(sums.representatives.values()))
    return {
        "inputs": inputs,
        "representatives": sums.representatives,
        "tokens": {name: sums.tokens(name) for name in inputs},
        "nonfinite": {name: sums.nonfinite_tokens(name) for name in inputs},
    }


def sums_arrays(sums: _Sums) -> Iterator[tuple[str, Array]]:
    """The arrays of a record, one after the other."""
    for name in sorted(set(sums.representatives.values())):
        yield f"{name}.counts", sums.counts(name)
        yield f"{name}.square", sums.square(name)
        yield f"{name}.norm_square", sums.norm_square(name)
        n_in = sums.norm_square(name).shape[-1]
        for begin in range(0, n_in, _PANEL):
            yield f"{name}.{begin}", sums.covariance_rows(name, begin, min(begin + _PANEL, n_in))[:, begin:]


class PassSums:
    """The sums of all ranges, as a capture has them; covariances stay in a file. A context manager: it goes at the end.

    `add` is called with the files of the ranges in their order. These are used up.
    """

    def __init__(self, folder: Path) -> None:
        self.representatives: dict[str, str] = {}
        self._path = folder / "sums"
        self._total: Record | None = None
        self._tokens: dict[str, int] = {}
        self._nonfinite: dict[str, int] = {}
        self._small: dict[str, Array] = {}  # counts and squares

    def add(self, record: Record) -> None:
        """Add the sums of the next range."""
        state = record.state
        for mine, theirs in ((self._tokens, state["tokens"]), (self._nonfinite, state["nonfinite"])):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        for name in state["inputs"]:
            for key in ("counts", "square", "norm_square"):
                own, more = f"{name}.{key}", record.array(f"{name}.{key}")
                self._small[own] = self._small[own] + more if own in self._small else more
        if self._total is None:
            self.representatives = state["representatives"]
            record.path.replace(self._path)
            self._total = Record(self._path, None, state, record.arrays)
            return
        for name in state["inputs"]:
            for _, begin in _panels(record, name):
                total = _mapped(self._total, f"{name}.{begin}", "r+")
                total += _mapped(record, f"{name}.{begin}", "r")
        record.path.unlink()

    def tokens(self, name: str) -> int:
        return self._tokens[name]

    def nonfinite_tokens(self, name: str) -> int:
        return self._nonfinite[name]

    def counts(self, name: str) -> npt.NDArray[np.int64]:
        return self._small[f"{name}.counts"]

    def square(self, name: str) -> F64:
        return self._small[f"{name}.square"]

    def norm_square(self, name: str) -> F64:
        return self._small[f"{name}.norm_square"]

    def covariance_rows(self, name: str, begin: int, end: int) -> F32:
        """Rows of the sum of x̂ x̂ᵀ, float32[end - begin, n_in]."""
        assert self._total is not None
        return _rows(self._total, name, begin, end)

    def covariance(self, name: str) -> F32:
        """The whole sum, float32[n_in, n_in]."""
        return self.covariance_rows(name, 0, self.norm_square(name).shape[-1])

    def __enter__(self) -> PassSums:
        self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        for left in self._path.parent.glob(f"{self._path.name}*"):  # of a run that was stopped, too
            left.unlink(missing_ok=True)


class StoredSums:
    """Sums of several records, each with inputs of its own, as a capture has them; they stay on disk."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.representatives: dict[str, str] = {}
        self._record: dict[str, Record] = {}
        for record in records:
            self.representatives |= record.state["representatives"]
            self._record |= dict.fromkeys(record.state["inputs"], record)

    def tokens(self, name: str) -> int:
        return int(self._record[name].state["tokens"][name])

    def nonfinite_tokens(self, name: str) -> int:
        return int(self._record[name].state["nonfinite"][name])

    def counts(self, name: str) -> npt.NDArray[np.int64]:
        return self._record[name].array(f"{name}.counts")

    def square(self, name: str) -> F64:
        return self._record[name].array(f"{name}.square")

    def norm_square(self, name: str) -> F64:
        return self._record[name].array(f"{name}.norm_square")

    def covariance_rows(self, name: str, begin: int, end: int) -> F32:
        """Rows of the sum of x̂ x̂ᵀ, float32[end - begin, n_in]."""
        return _rows(self._record[name], name, begin, end)

    def covariance(self, name: str) -> F32:
        """The whole sum, float32[n_in, n_in]."""
        return self.covariance_rows(name, 0, self.norm_square(name).shape[-1])


def _rows(record: Record, name: str, begin: int, end: int) -> F32:
    """Rows of the symmetric matrix of an input, of whose panels the part right of the diagonal is stored."""
    out = np.empty((end - begin, record.arrays[f"{name}.norm_square"].shape[-1]), np.float32)
    for size, first in _panels(record, name):
        panel, last = _mapped(record, f"{name}.{first}", "r"), first + size
        low, high = max(begin, first), min(end, last)
        if low < high:
            out[low - begin : high - begin, first:] = panel[low - first : high - first]
        if (low := max(begin, last)) < end:  # what is left of these rows stands in the panel's columns
            out[low - begin :, first:last] = panel[:, low - first : end - first].T
    return out


def _panels(record: Record, name: str) -> Iterator[tuple[int, int]]:
    """Rows and first row of each panel of an input."""
    begin = 0
    while (stored := record.arrays.get(f"{name}.{begin}")) is not None:
        yield stored.shape[0], begin
        begin += stored.shape[0]


def _mapped(record: Record, name: str, mode: Any) -> F32:
    stored = record.arrays[name]
    return np.memmap(record.path, stored.dtype, mode, stored.offset, stored.shape)
