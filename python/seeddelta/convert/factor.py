"""Triangular factor of a covariance and its inverse, in tiles that several threads share.

LAPACK does each with one call, but rounds differently with other numbers of threads, and results must not depend on
that. Here the tiles are the same for any number, each the work of one thread (Golub, Van Loan, Matrix Computations 4.2:
the right-looking block form).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from ..processors import processors

F64 = npt.NDArray[np.float64]
_TILE = 512


def in_threads(work: Callable[[int], Any], starts: Iterable[int], threads: int) -> list[Any]:
    """work(start) of all starts, in their order, by `threads` threads (0: all cores)."""
    starts = list(starts)
    workers = min(len(starts), threads or processors())
    if workers <= 1:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(workers, "seeddelta-tiles") as pool:
        return list(pool.map(work, starts))


def cholesky(h: F64, threads: int = 0) -> bool:
    """Puts the lower triangular L with L Lᵀ = H in the place of H, float64 [n, n]. False when H is not positive
    definite; it is destroyed then."""
    n = len(h)
    for begin in range(0, n, _TILE):
        end = min(begin + _TILE, n)
        factor, failed = lapack.dpotrf(h[begin:end, begin:end], lower=1)
        if failed:
            return False
        h[begin:end, begin:end] = factor
        h[begin:end, end:] = 0
        _eliminate(h, begin, end, lapack.dtrtri(factor, lower=1)[0].T, threads)
    return True


def _eliminate(h: F64, begin: int, end: int, inverse: F64, threads: int) -> None:
    """Takes the columns [begin, end) out of the rows below them."""

    def divide(row: int) -> None:
        below = h[row : row + _TILE, begin:end]
        below[:] = below @ inverse

    def subtract(row: int) -> None:
        last = row + _TILE
        h[row:last, end:last] -= h[row:last, begin:end] @ h[end:last, begin:end].T

    rows = range(end, len(h), _TILE)
    in_threads(divide, rows, threads)
    in_threads(subtract, rows, threads)


def invert_lower(lower: F64, threads: int = 0) -> None:
    """Puts the inverse of a lower triangular matrix, float64 [n, n], in its place."""
    n = len(lower)
    for begin in reversed(range(0, n, _TILE)):
        end = min(begin + _TILE, n)
        own = lapack.dtrtri(lower[begin:end, begin:end], lower=1)[0]
        _solve(lower, begin, end, own, threads)
        lower[begin:end, begin:end] = own


def _solve(lower: F64, begin: int, end: int, own: F64, threads: int) -> None:
    """The columns [begin, end) of the inverse, of which the columns after them are there already."""
    column = lower[end:, begin:end].copy()

    def multiply(row: int) -> None:
        last = min(row + _TILE, len(lower))
        lower[row:last, begin:end] = -(lower[row:last, end:last] @ column[: last - end] @ own)

    in_threads(multiply, range(end, len(lower), _TILE), threads)
