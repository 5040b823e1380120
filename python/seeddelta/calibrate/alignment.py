"""Targets for a matrix whose inputs are no longer those of the original model, because blocks before it are encoded.

As GPTAQ (Li et al. 2025) and Qronos (Zhang et al. 2025): x_d is an input in the original model, x_q in the encoded one.
The outputs W x_d are wanted from W* x_q, so W* = [W (C_dq + λI) − α C_δq] (C_qq + λI)⁻¹ with C_dq = E[a x_d x_qᵀ],
C_qq = E[a x_q x_qᵀ] and a = n / |x_d|² a token. A matrix whose outputs are added to the residual stream may also make
up for what the stream has become, δ = r_q − r_d: C_δq = E[a δ x_qᵀ]. λ and α are those of the least error on chunks
that were held out; when none is better than W itself, it stays.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack  # one of its BLAS threads is used, see jobs.one_blas_thread

from ..storage.output import output_error

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
DAMPING = (0.01, 0.1, 1.0)  # λ, in units of the mean of the diagonal of C_qq
CORRECTION = (0.0, 0.5, 1.0)  # α
HELD_OUT = 6  # every so many chunks one is held out
_MOST = 0.5  # of |W x_d|: a longer δ is cut to it, or the first tokens of chunks own the sum
_PANEL = 256  # rows of a product that are one job: a fixed number, so that sums do not depend on the threads


@dataclass(frozen=True)
class Target:
    """`weights` float32[n_out, n_in] to be encoded; λ (None: it is W) and α; `_error` of W and of the target."""

    weights: F32
    damping: float | None
    correction: float
    before: float
    after: float


class Moments:
    """Sums over chunks of text of one input; a chunk is held out or not. `n_out` is that of a writer, else 0.

    With a folder they lie in files there without a name, and no more of them is in memory than there is room.
    """

    def __init__(self, n_in: int, n_out: int, threads: int, folder: Path | None = None) -> None:
        self.n_in, self.tokens = n_in, 0
        shapes = {"qq": (n_in, n_in), "dq": (n_in, n_in)} | ({"xq": (n_out, n_in)} if n_out else {})
        self._sums: list[dict[str, F32]] = [
            {key: _zeros(shape, folder) for key, shape in shapes.items()} for _ in range(2)
        ]
        self._pool = ThreadPoolExecutor(threads or None)

    def add(self, chunk: int, dense: F32, encoded: F32, outputs: F32 | None = None, drift: F32 | None = None) -> None:
        """Add float32[n, n_in] of both models; of a writer also W x_d and δ, float32[n, n_out]."""
        length = np.sqrt(np.maximum(np.einsum("ti,ti->t", dense, dense, dtype=np.float64), 1e-20))
        weight = (np.sqrt(self.n_in) / length).astype(np.float32)[:, None]
        usable = np.isfinite(weight[:, 0]) & np.isfinite(encoded).all(axis=1)
        d, q = (dense * weight)[usable], (encoded * weight)[usable]
        sums = self._sums[chunk % HELD_OUT == HELD_OUT - 1]
        self._product(sums["qq"], q, q)
        self._product(sums["dq"], d, q)
        if outputs is not None and drift is not None:
            own, delta = (np.sqrt((x.astype(np.float64) ** 2).sum(axis=1)) for x in (outputs, drift))
            cut = np.minimum(1, _MOST * own / np.maximum(delta, 1e-20)).astype(np.float32)[:, None]
            self._product(sums["xq"], (drift * cut * weight)[usable], q)
        self.tokens += int(usable.sum())

    def _product(self, total: F32, left: F32, right: F32) -> None:
        """total += leftᵀ right."""

        def job(begin: int) -> None:
            total[begin : begin + _PANEL] += left[:, begin : begin + _PANEL].T @ right

        list(self._pool.map(job, range(0, total.shape[0], _PANEL)))

    def covariance_rows(self, begin: int, end: int) -> F32:
        """Rows of the sum of a x_q x_qᵀ over all chunks, float32[end - begin, n_in]."""
        return np.asarray(self._sums[0]["qq"][begin:end] + self._sums[1]["qq"][begin:end], np.float32)

    @property
    def covariance(self) -> F32:
        """The whole sum, float32[n_in, n_in]."""
        return self.covariance_rows(0, self.n_in)

    @property
    def diagonal(self) -> F32:
        """Its diagonal, float32[n_in]."""
        return np.asarray(np.diagonal(self._sums[0]["qq"]) + np.diagonal(self._sums[1]["qq"]), np.float32)

    def targets(self, weights: dict[str, F32]) -> dict[str, Target]:
        """The best target of each matrix that reads this input, of float32[n_out, n_in]."""
        train, held = self._sums
        if not np.any(held["qq"]):  # too few chunks to choose
            return {name: Target(w, None, 0.0, 0.0, 0.0) for name, w in weights.items()}
        best = {name: Target(w, None, 0.0, *[_error(w, w, held)] * 2) for name, w in weights.items()}
        mean = float(np.trace(train["qq"])) / self.n_in
        for damping in DAMPING:
            factor = _factor(train["qq"], damping * mean)
            if factor is None:
                continue
            for name, w in weights.items():
                plain = _product(w, train["dq"]) + damping * mean * w
                for correction in CORRECTION if "xq" in train else (0.0,):
                    right = plain - correction * train["xq"] if correction else plain
                    solved = np.asarray(lapack.dpotrs(factor, right.T, lower=1)[0].T, np.float32)
                    error = _error(w, solved, held)
                    if error < best[name].after:
                        best[name] = Target(solved, damping, correction, best[name].before, error)
            del factor  # before there is another
        return best

    def close(self) -> None:
        self._pool.shutdown()


def sums_bytes(n_in: int, n_out: int) -> int:
    """Bytes of the sums of an input (n_out 0: of no writer)."""
    return 4 * 2 * (2 * n_in + n_out) * n_in


def _zeros(shape: tuple[int, int], folder: Path | None) -> F32:
    if folder is None:
        return np.zeros(shape, np.float32)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping stays, and goes with the array
            file.truncate(4 * shape[0] * shape[1])
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise output_error(folder, error) from error


def _product(w: F32, sums: F32) -> F64:
    """w · sums in double precision, of which some columns are in memory."""
    left, out = w.astype(np.float64), np.empty((len(w), sums.shape[1]))
    for begin in range(0, sums.shape[1], _PANEL):
        out[:, begin : begin + _PANEL] = left @ sums[:, begin : begin + _PANEL]
    return out


def _factor(covariance: F32, damping: float) -> Any:
    h = np.asfortranarray(covariance, np.float64)
    h[np.diag_indices_from(h)] += damping
    factor, failed = lapack.dpotrf(h, lower=1, overwrite_a=1)
    return None if failed else factor


def _error(dense: F32, target: F32, sums: dict[str, F32]) -> float:
    """E|W* x_q − W x_d + δ|² without the part that is the same for every W*."""
    wanted = dense @ sums["dq"]
    if "xq" in sums:
        wanted -= sums["xq"]
    square = np.einsum("oi,oi->", target @ sums["qq"], target, dtype=np.float64)
    return float(square - 2 * np.einsum("oi,oi->", target, wanted, dtype=np.float64))
