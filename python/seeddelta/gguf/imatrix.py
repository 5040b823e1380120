"""Importance matrices: E[x²] of every input column of a weight, as llama.cpp's `llama-imatrix` writes them.

Two forms: GGUF (tensors `<weight>.in_sum2` and `<weight>.counts`) and the legacy .dat. Both can hold one matrix an
expert.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import FormatError, ImatrixError
from .header import Header
from .model_file import read_header
from .writer import PlannedTensor, Typed, Value, write_gguf

SUM_SUFFIX, COUNT_SUFFIX = ".in_sum2", ".counts"
_REMEDY = "make it again with llama-imatrix"
_LEAST = 1e-7  # least weight of a column: the encoder needs positive ones, and a column never seen may still come


@dataclass(frozen=True)
class ImatrixEntry:
    """Sums of x² of one weight, float32[n_matrices, n_in], and the number of rows summed, float32[n_matrices]."""

    sums: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]

    def mean_square(self) -> npt.NDArray[np.float32]:
        """E[x²], float32[n_matrices · n_in]; 1 where nothing was counted, as in llama.cpp."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1e-30), np.float32(1)).astype(np.float32).ravel()


@dataclass(frozen=True)
class Imatrix:
    """Entries by the name of the weight, and where they come from."""

    entries: dict[str, ImatrixEntry]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    path: Path = field(default_factory=lambda: Path("imatrix"))

    def importance(
        self, name: str, n_in: int, *, experts: int | None = None, power: float = 1.0, eps: float = 0.0
    ) -> npt.NDArray[np.float32]:
        """Weights of the columns of a tensor: (E[x²] + eps · mean)^power, normalized to the mean 1; float32[n_in].

        With `experts` float32[experts, n_in], each expert normalized by itself; one entry for all is given to each, and
        the columns of an expert that no token chose weigh alike.
        Raises ImatrixError when there is no entry of that name, it does not fit, or it is zero everywhere.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ImatrixError(
                f"{self.path}: no entry for tensor {name!r}; make the imatrix with this model, "
                "or leave the tensor out with --layers or --targets"
            )
        found = entry.mean_square().astype(np.float64)
        if found.size not in (n_in, n_in * (experts or 1)):
            columns = f"{n_in} columns" + (f" of {experts} experts" if experts else "")
            raise ImatrixError(
                f"{self.path}: the entry of tensor {name!r} has {found.size} values for {columns}; "
                "make the imatrix with this model"
            )
        if not found.any():
            raise ImatrixError(f"{self.path}: the entry of tensor {name!r} is zero everywhere; {_REMEDY}")
        mean_square = np.broadcast_to(found.reshape(-1, n_in), (experts or 1, n_in))
        mean = mean_square.mean(axis=1, keepdims=True)
        # the division by the mean comes first: a power of a tiny number would underflow
        weights = (np.divide(mean_square, mean, out=np.ones(mean_square.shape), where=mean > 0) + eps) ** power
        weights = np.maximum(weights / weights.mean(axis=1, keepdims=True), _LEAST).astype(np.float32)
        return np.asarray(weights if experts else weights[0])

    def covers(self, name: str) -> bool:
        """True when there is an entry of that name that says something: a matrix that no token reached has zeros."""
        entry = self.entries.get(name)
        return entry is not None and bool(entry.mean_square().any())

    def check(self, names: Iterable[str]) -> None:
        """Raise ImatrixError naming the first of the tensors that has no entry."""
        for name in names:
            if name not in self.entries:
                self.importance(name, 0)


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read a GGUF or legacy importance matrix; the form is told by the magic.

    Raises ImatrixError when the file is missing, truncated, or has impossible sizes, NaN or negative sums.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        is_gguf = magic == b"GGUF"
        imatrix = _read_gguf(read_header(path)) if is_gguf else _read_legacy(path, path.read_bytes())
    except OSError as error:
        raise ImatrixError(f"{path}: cannot be read ({error.strerror}); check the path given with --imatrix") from error
    except FormatError as error:
        raise ImatrixError(f"{error}") from error
    for name, entry in imatrix.entries.items():
        for values in (entry.sums, entry.counts):
            if not np.isfinite(values).all() or (values < 0).any():
                raise ImatrixError(
                    f"{path}: the entry of tensor {name!r} has NaN, infinite or negative values; {_REMEDY}"
                )
    return imatrix


def write_imatrix(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    """Write an importance matrix as GGUF, sorted by name. Raises OutputError."""
    metadata: dict[str, Value] = {"general.type": Typed("imatrix", GGUFValueType.STRING)}
    if imatrix.datasets:
        metadata["imatrix.datasets"] = Typed(list(imatrix.datasets), GGUFValueType.ARRAY, GGUFValueType.STRING)
    metadata["imatrix.chunk_count"] = Typed(imatrix.chunk_count, GGUFValueType.UINT32)
    metadata["imatrix.chunk_size"] = Typed(imatrix.chunk_size, GGUFValueType.UINT32)
    arrays = {}
    for name in sorted(imatrix.entries):
        entry = imatrix.entries[name]
        arrays[name + SUM_SUFFIX] = entry.sums.astype("<f4")
        arrays[name + COUNT_SUFFIX] = entry.counts.astype("<f4").reshape(-1, 1)
    plan = [PlannedTensor(name, array.shape, GGMLQuantizationType.F32) for name, array in arrays.items()]
    write_gguf(path, metadata, plan, lambda tensor: [arrays[tensor.name]])


def _read_gguf(header: Header) -> Imatrix:
    data = np.memmap(header.path, dtype=np.uint8, mode="r")

    def array(name: str) -> npt.NDArray[np.float32]:
        info = header.tensors.get(name)
        if info is None or info.type != GGMLQuantizationType.F32:
            raise ImatrixError(f"{header.path}: {name!r} is missing or not F32; {_REMEDY}")
        return np.array(data[info.offset : info.offset + info.nbytes]).view("<f4")

    entries = {}
    for name in header.tensors:
        if not name.endswith(SUM_SUFFIX):
            continue
        weight = name.removesuffix(SUM_SUFFIX)
        sums, counts = array(name), array(weight + COUNT_SUFFIX)
        if sums.size % counts.size:
            raise ImatrixError(f"{header.path}: {name!r} has {sums.size} values for {counts.size} matrices; {_REMEDY}")
        entries[weight] = ImatrixEntry(sums.reshape(counts.size, -1), counts)
    if not entries:
        raise ImatrixError(f"{header.path}: has no importance entries; give a file of llama-imatrix")
    datasets = header.metadata.get("imatrix.datasets", [])
    return Imatrix(
        entries,
        tuple(datasets) if isinstance(datasets, list) else (),
        header.metadata.scalar("imatrix.chunk_count", int, 0),
        header.metadata.scalar("imatrix.chunk_size", int, 0),
        header.path,
    )


def _read_legacy(path: Path, data: bytes) -> Imatrix:
    """Legacy form: i32 entries; each i32 length, name, i32 calls, i32 values, f32[values]; then i32 chunks, dataset."""
    at = 0

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if not 0 <= count <= len(data) - at:
            raise ImatrixError(f"{path}: the file ends inside {what}, or is no imatrix at all; {_REMEDY}")
        at += count
        return data[at - count : at]

    def number(what: str) -> int:
        return int(struct.unpack("<i", take(4, what))[0])

    entries: dict[str, ImatrixEntry] = {}
    n_entries = number("the number of entries")
    if not 1 <= n_entries <= len(data) // 12:
        raise ImatrixError(f"{path}: not an imatrix ({n_entries} entries in {len(data)} bytes); {_REMEDY}")
    for i in range(n_entries):
        what = f"entry {i + 1} of {n_entries}"
        name = take(number(what), what).decode(errors="replace")
        calls, n_values = number(what), number(what)
        if n_values < 1 or name in entries:
            raise ImatrixError(f"{path}: {what}, {name!r}, is empty or there twice; {_REMEDY}")
        sums = np.frombuffer(take(4 * n_values, f"the values of {name!r}"), "<f4").reshape(1, -1)
        # calls = 0 means that the values are means already
        entries[name] = ImatrixEntry(sums, np.array([max(calls, 1)], np.float32))
    chunks = 0
    datasets: tuple[str, ...] = ()
    if at < len(data):  # the last two fields came later to the format
        chunks = number("the number of chunks")
        if at < len(data):
            dataset = take(number("the dataset"), "the dataset").decode(errors="replace")
            datasets = (dataset,) if dataset else ()
    return Imatrix(entries, datasets, max(chunks, 0), 0, path)
