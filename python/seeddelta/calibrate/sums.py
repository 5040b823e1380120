"""Sums of the inputs of matrices on disk, and the sum over all ranges of a text.

A range's sums begin at zero and are written to a file; they are added in the order of the ranges. So the results are
the same bytes wherever the ranges are computed, and whichever ends first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..storage.checkpoint import Array, Record
from .capture import Sums

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_PANEL = 256  # rows of a covariance that stand together in a file, with the columns from the first of them on


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
