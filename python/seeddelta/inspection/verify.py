"""Check a SeedΔ file against what it says of itself, and against the models that it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..calibrate.covariance import open_covariance
from ..convert.rest import kept_chunks, rest_types
from ..gguf import schema
from ..gguf.imatrix import read_imatrix
from ..gguf.reader import SeedDeltaFile, StoredTensor, open_seeddelta
from ..gguf.schema import LanesBase
from ..gguf.source import SourceModel, file_sha256, open_source
from ..gguf.writer import PlannedTensor, crc32
from ..numeric import row_ranges

F32 = npt.NDArray[np.float32]
# The norms are sums in double precision of float32 numbers that are the same bits everywhere: only the order differs.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Check:
    """One comparison: `stored` is what the file says, `found` what is so; `tensor` is empty for the whole file."""

    tensor: str
    what: str
    stored: str | float | int
    found: str | float | int
    passed: bool


@dataclass(frozen=True)
class Verification:
    """All comparisons of a file, and what could not be compared, with the reason."""

    path: Path
    checks: tuple[Check, ...]
    skipped: tuple[str, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Counts by kind, failures and what was skipped, for JSON."""
        counts: dict[str, int] = {}
        for check in self.checks:
            counts[check.what] = counts.get(check.what, 0) + 1
        return {
            "path": str(self.path),
            "ok": self.ok,
            "checks": counts,
            "failures": [asdict(check) for check in self.failures],
            "skipped": list(self.skipped),
        }


def verify(
    path: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    hessian: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Verification:
    """Compare a SeedΔ file with what it says.

    Always: every index and scale, the CRC-32 of every tensor (if the file has them) and ‖Ŵ‖ of every converted one.
    With `source`, the original: its SHA-256, ‖W‖, ‖W−Ŵ‖, and the bytes of the tensors that were kept. With `imatrix`
    or `hessian`, the files that the build used, also the norms weighted by the importance of the columns.
    One matrix is in memory at a time, and its source.

    Raises FormatError when the file cannot be read at all (a shape, an index or a scale is wrong), and what reading the
    others raises.
    """
    with open_seeddelta(path) as file:
        return _Verifier(file, source, imatrix, hessian).run(progress)


class _Verifier:
    def __init__(
        self,
        file: SeedDeltaFile,
        source: str | os.PathLike[str] | None,
        imatrix: str | os.PathLike[str] | None,
        hessian: str | os.PathLike[str] | None,
    ) -> None:
        self.file = file
        self.checks: list[Check] = []
        self.skipped: list[str] = []
        self.own = SourceModel(file.header)
        self.source = None if source is None else open_source(source)
        self.imatrix = None if imatrix is None else read_imatrix(imatrix)
        self.covariance = None if hessian is None else open_covariance(hessian)
        self.weighted = self.imatrix is not None or self.covariance is not None
        given = {"source": source, "imatrix": imatrix, "hessian": hessian}
        self.files = {what: Path(given_path) for what, given_path in given.items() if given_path is not None}

    def run(self, progress: bool) -> Verification:
        from ..progress import tqdm

        self._provenance()
        self._crc32()
        tensors = self.file.tensors.values()
        total = sum(tensor.description.weights for tensor in tensors)
        with tqdm(total=total, unit="w", unit_scale=True, desc="verify", disable=not progress) as bar:
            for tensor in tensors:
                self._norms(tensor)
                bar.update(tensor.description.weights)
        self._kept()
        return Verification(self.file.path, tuple(self.checks), tuple(self.skipped))

    def _provenance(self) -> None:
        keys = {
            "source": schema.KEY_SOURCE_SHA256,
            "imatrix": schema.KEY_IMATRIX_SHA256,
            "hessian": schema.KEY_HESSIAN_SHA256,
        }
        for what, key in keys.items():
            stored = self.file.header.metadata.scalar(key, str, "")
            if what in self.files:
                if what == "source" and self.source is not None:
                    found = self.source.sha256()
                elif what == "hessian" and self.covariance is not None:
                    found = self.covariance.sha256
                else:
                    found = file_sha256(self.files[what])
                self._add("", f"SHA-256 of the {what}", stored or "none", found)
            elif stored:
                self.skipped.append(f"the {what} is not given (--{what}): {self.file.metadata.get(f'{key[:-6]}file')}")

    def _crc32(self) -> None:
        if self.file.checksums is None:
            self.skipped.append(f"the file has no checksums ({schema.KEY_CRC32})")
            return
        owners = {
            f"{tensor.description.stem}.{suffix}": tensor.name
            for tensor in self.file.tensors.values()
            for suffix in tensor.arrays
        }
        for name, stored in self.file.checksums.items():
            found = crc32(_pieces(self.own.raw(name)))
            what = f"CRC-32 of {name.rpartition('.')[2]}" if name in owners else "CRC-32"
            self.checks.append(Check(owners.get(name, name), what, f"{stored:08x}", f"{found:08x}", stored == found))

    def _norms(self, tensor: StoredTensor) -> None:
        description = tensor.description
        dense = self._matrix(tensor)
        importance = self._importance(tensor)
        sums = np.zeros((2, 3))  # plain, weighted: ‖W‖², ‖Ŵ‖², ‖W−Ŵ‖²
        weight = tensor.to_weight()
        for begin, end in _row_ranges(description.rows, *description.shape):
            stored = weight.dequantize(begin, end)
            known = None if importance is None else importance[begin // description.shape[0]]
            parts = [stored] if dense is None else [dense[begin:end], stored, dense[begin:end] - stored]
            for at, part in zip((1,) if dense is None else (0, 1, 2), parts, strict=True):
                columns = np.einsum("oi,oi->i", part, part, dtype=np.float64)
                sums[0, at] += columns.sum()
                sums[1, at] += 0 if known is None else (columns * known).sum()
        found = np.sqrt(sums)
        for kind, suffix in enumerate(("", "_w") if importance is not None else ("",)):
            for at, (key, what) in enumerate((("w", "‖W‖"), ("w_hat", "‖Ŵ‖"), ("err", "‖W−Ŵ‖"))):
                if dense is not None or key == "w_hat":
                    text = f"{what} weighted" if suffix else what
                    self._add(tensor.name, text, getattr(description.norms, key + suffix), float(found[kind, at]))

    def _matrix(self, tensor: StoredTensor) -> F32 | None:
        if self.source is None:
            return None
        tensor.dense_copy(self.source.header, "give the original model that the file was made from")
        return self.source.matrix(tensor.name)

    def _importance(self, tensor: StoredTensor) -> F32 | None:
        """Importance of the columns, float32[experts or 1, n_in], as the build had it; None when it is not known."""
        if not self.weighted:
            return None
        name, experts, n_in = tensor.name, tensor.description.experts, tensor.description.shape[1]
        has_imatrix = schema.KEY_IMATRIX_SHA256 in self.file.metadata
        if has_imatrix and self.imatrix is not None and self.imatrix.covers(name):
            power = self.file.header.metadata.scalar(schema.KEY_IMATRIX_POWER, float, 1.0)
            eps = self.file.header.metadata.scalar(schema.KEY_IMATRIX_EPS, float, 0.0)
            values = self.imatrix.importance(name, n_in, experts=experts, power=power, eps=eps)
            return np.asarray(values, np.float32).reshape(-1, n_in)
        # without an entry in the imatrix the covariance weighs, where the encoder used it
        description = tensor.description
        used = experts is None and (isinstance(description.base, LanesBase) or description.is_proc_sparse)
        if used and self.covariance is not None and self.covariance.has(name):
            if has_imatrix and self.imatrix is None:
                return None
            return np.asarray(self.covariance.importance(name), np.float32).reshape(1, n_in)
        return None

    def _kept(self) -> None:
        if self.source is None:
            return
        for name in self.file.dense_tensors:
            info, theirs = self.file.header.tensors[name], self.source.tensors.get(name)
            if theirs is None:
                self._add(name, "kept tensor", f"{info.type.name}{list(info.shape)}", "not in the source")
            elif theirs.shape == info.shape and name in rest_types(self.source.header, info.type.name.lower()):
                rounded = kept_chunks(self.source, PlannedTensor(name, info.shape, info.type))
                same = crc32(rounded) == crc32([self.own.raw(name)])
                found = "same" if same else "other"
                self.checks.append(Check(name, "kept tensor", f"the source's in {info.type.name}", found, same))
            elif (theirs.type, theirs.shape) != (info.type, info.shape):
                kinds = (f"{one.type.name}{list(one.shape)}" for one in (info, theirs))
                self._add(name, "kept tensor", *kinds)
            else:
                same = np.array_equal(self.own.raw(name), self.source.raw(name))
                self.checks.append(Check(name, "kept tensor", "the source's bytes", "same" if same else "other", same))

    def _add(self, tensor: str, what: str, stored: str | float, found: str | float) -> None:
        passed = stored == found
        if isinstance(stored, float) and isinstance(found, float):
            passed = abs(stored - found) <= TOLERANCE * max(abs(stored), abs(found))
        self.checks.append(Check(tensor, what, stored, found, passed))


def _pieces(data: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for begin in range(0, len(data), 1 << 24):
        yield data[begin : begin + (1 << 24)]


def _row_ranges(rows: int, n_out: int, n_in: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are handled at a time; none has rows of two experts."""
    for expert in range(0, rows, n_out):
        for begin, end in row_ranges(n_out, n_in):
            yield expert + begin, expert + end
