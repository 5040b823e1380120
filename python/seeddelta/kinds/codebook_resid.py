"""Residual scheme codebook_resid: every row as a sum of K atoms of one dictionary, each with its amplitude.

Rows and atoms take turns, as in k-means: matching pursuit (Mallat, Zhang 1993) chooses the atoms of a row, least
squares their amplitudes, and the method of optimal directions (Engan, Aase, Husøy 1999) the atoms. With k = 1 this is
the gain-shape k-means of StateCells. Nothing is drawn at random: the result depends on the arguments alone.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..numeric import row_ranges
from .kind import F32, Array, Arrays, Layout, ResidualKind
from .values import half

R_DICT, R_CODES, R_VALS = "r_dict", "r_codes", "r_vals"
# measured on five of SmolLM2's matrices: a ninth lowers the error by 0.02 to 0.23 %, 24 more by 0.2 to 1.5 % in all
ITERATIONS = 8
_CHUNK = 1 << 23  # numbers of an intermediate array
_RIDGE = 1e-6  # of the mean diagonal: keeps systems of nearly parallel atoms solvable


class CodebookResidual(ResidualKind):
    """K atoms a row of a dictionary of `size` atoms, each with its amplitude."""

    number = 2
    suffixes = (R_DICT, R_CODES, R_VALS)
    unsigned = (R_CODES,)
    finite = (R_DICT, R_VALS)
    all_rows = True
    entries = 8
    fits_experts = False
    scheme: Literal["codebook_resid"]
    size: int = Field(ge=1, le=65536)
    K: int = Field(ge=1)

    @classmethod
    def check_recipe(cls, recipe: Any) -> None:
        if recipe.residual_scheme == "codebook_resid" and recipe.vals == "int8":
            raise ValueError("--vals int8 is for the schemes coo and block")

    @classmethod
    def describe(cls, recipe: Any, entries: int) -> CodebookResidual:
        return cls(scheme="codebook_resid", size=recipe.codebook_size, K=entries)

    @classmethod
    def room(cls, recipe: Any, n_in: int, n_out: int) -> tuple[int, int, float]:
        return recipe.codebook_size, 32, 16 * recipe.codebook_size * n_in / n_out  # the dictionary

    def layout(self, n_out: int, n_in: int) -> Layout:
        return {
            R_DICT: ((self.size, n_in), np.dtype("<f2")),
            R_CODES: ((n_out, self.K), np.dtype("<i2")),
            R_VALS: ((n_out, self.K), np.dtype("<f2")),
        }

    def check_data(self, arrays: Arrays, n_in: int) -> None:
        if int(arrays[R_CODES].max()) >= self.size:
            raise ValueError(f"r_codes has atom {int(arrays[R_CODES].max())} of {self.size}")

    def float_macs(self, n_out: int, n_in: int) -> int:
        return self.size * n_in + n_out * self.K

    def encode(self, delta: F32, row_scale: F32, importance: F32 | None, threads: int) -> dict[str, Array]:
        dictionary, codes, amplitudes = train_codebook(delta, row_scale, self.size, self.K, importance)
        return {R_DICT: dictionary, R_CODES: codes.view("<i2"), R_VALS: amplitudes}


def train_codebook(
    delta: F32, row_scale: F32, size: int, k: int, importance: F32 | None = None, iterations: int = ITERATIONS
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.uint16], npt.NDArray[np.float16]]:
    """Dictionary float16[size, n_in], codes uint16[n_out, k] and amplitudes float16[n_out, k] for float32[n_out, n_in].

    Minimizes Σ row_scale²·importance·(Δ − Σ amplitude·atom)², with float16 atoms and amplitudes in the last round.
    """
    n_in = delta.shape[1]
    if not 1 <= k <= size <= 1 << 16:
        raise ValueError(f"k {k} and size {size} must be 1 <= k <= size <= 65536")
    root = np.ones(n_in, np.float32) if importance is None else np.sqrt(importance)
    rows = np.asarray(delta * root, np.float32)
    weight = row_scale.astype(np.float64) ** 2
    atoms = _first_atoms(rows, size)
    for _ in range(iterations):
        codes, amplitudes = pursue(rows, atoms, k)
        atoms = _best_atoms(rows, codes, amplitudes, weight, size)
    dictionary = np.asarray(atoms / root * np.float32(np.sqrt(n_in)), np.float32)
    stored = half(dictionary)
    codes, amplitudes = pursue(rows, stored.astype(np.float32) * root, k)
    return stored, codes, half(amplitudes)


def pursue(rows: F32, atoms: F32, k: int) -> tuple[npt.NDArray[np.uint16], F32]:
    """Codes uint16[n_out, k], all different in a row, and least-squares amplitudes float32[n_out, k]."""
    gram = atoms @ atoms.T
    square = np.diagonal(gram).copy()
    inverse = np.divide(1, square, out=np.zeros_like(square), where=square > 0)
    codes = np.empty((len(rows), k), np.uint16)
    amplitudes = np.empty((len(rows), k), np.float32)
    for begin, end in row_ranges(len(rows), max(len(atoms), k * k), _CHUNK):
        inner = rows[begin:end] @ atoms.T
        left, free = inner.copy(), np.repeat(inverse[None], end - begin, axis=0)
        at = np.arange(end - begin)
        chosen = np.empty((end - begin, k), np.int64)
        for step in range(k):
            best = np.where(free < 0, np.float32(-1), left * left * free).argmax(axis=1)
            chosen[:, step] = best
            left -= (left[at, best] * inverse[best])[:, None] * gram[best]
            free[at, best] = -1  # not again
        codes[begin:end] = chosen
        amplitudes[begin:end] = _least_squares(gram, inner, chosen)
    return codes, amplitudes


def _least_squares(gram: F32, inner: F32, chosen: npt.NDArray[np.int64]) -> F32:
    k = chosen.shape[1]
    system = gram[chosen[:, :, None], chosen[:, None, :]].astype(np.float64)
    ridge = _RIDGE * np.trace(system, axis1=1, axis2=2) / k
    system += np.where(ridge > 0, ridge, 1.0)[:, None, None] * np.eye(k)
    right = np.take_along_axis(inner, chosen, axis=1).astype(np.float64)
    return np.asarray(np.linalg.solve(system, right[:, :, None])[:, :, 0], np.float32)


def _first_atoms(rows: F32, size: int) -> F32:
    """Rows at equal distances; a matrix of fewer rows gives its columns' unit vectors after them."""
    count = min(size, len(rows))
    atoms = np.zeros((size, rows.shape[1]), np.float32)
    atoms[:count] = rows[np.arange(count) * len(rows) // count]
    for extra in range(count, size):
        atoms[extra, extra % rows.shape[1]] = 1
    return _unit(atoms)


def _best_atoms(
    rows: F32, codes: npt.NDArray[np.uint16], amplitudes: F32, weight: npt.NDArray[np.float64], size: int
) -> F32:
    """Least-squares atoms for given codes and amplitudes; an unused one becomes what a badly served row lacks."""
    left = np.zeros((size, size))
    right = np.zeros((size, rows.shape[1]))
    for begin, end in row_ranges(len(rows), size, _CHUNK):
        sparse = _spread(codes[begin:end], amplitudes[begin:end], size)
        weighted = sparse * weight[begin:end, None]
        left += sparse.T @ weighted
        right += weighted.T @ rows[begin:end]
    used = np.diagonal(left) > 0
    left += np.where(used.any(), _RIDGE * np.trace(left) / size, 1.0) * np.eye(size)
    left[~used, ~used] = 1
    atoms = np.asarray(np.linalg.solve(left, right), np.float32)
    unused = np.flatnonzero(~used)
    if len(unused):
        missing = np.empty(len(rows))
        for begin, end in row_ranges(len(rows), size, _CHUNK):
            error = rows[begin:end] - _spread(codes[begin:end], amplitudes[begin:end], size) @ atoms
            missing[begin:end] = weight[begin:end] * np.einsum("oi,oi->o", error, error, dtype=np.float64)
        worst = np.argsort(-missing, kind="stable")[: len(unused)]
        error = rows[worst] - _spread(codes[worst], amplitudes[worst], size) @ atoms
        atoms[unused[: len(worst)]] = error
    return _unit(atoms)


def _spread(codes: npt.NDArray[np.uint16], amplitudes: F32, size: int) -> npt.NDArray[np.float64]:
    """Amplitudes as a matrix [rows, size]; codes of a row differ."""
    out = np.zeros((len(codes), size))
    np.put_along_axis(out, codes.astype(np.int64), amplitudes.astype(np.float64), axis=1)
    return out


def _unit(atoms: F32) -> F32:
    norm = np.linalg.norm(atoms, axis=1, keepdims=True)
    return np.asarray(np.divide(atoms, norm, out=np.zeros_like(atoms), where=norm > 0), np.float32)
