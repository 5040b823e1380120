"""Matrices that are handled some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

_CHUNK = 1 << 22  # weights handled at a time beside the matrix itself: 16 MiB of float32


def row_ranges(n_out: int, n_in: int, chunk: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are handled at a time: about `chunk` numbers."""
    rows = max(1, chunk // n_in)
    for begin in range(0, n_out, rows):
        yield begin, min(begin + rows, n_out)
