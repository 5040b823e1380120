"""Matrices that are handled some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

_CHUNK = 1 << 22  # weights handled at a time beside the matrix itself


def row_ranges(n_out: int, n_in: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are handled at a time."""
    rows = max(1, _CHUNK // n_in)
    for begin in range(0, n_out, rows):
        yield begin, min(begin + rows, n_out)
