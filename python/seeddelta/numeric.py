"""What linear algebra of large matrices shares: some rows at a time, and NumPy's BLAS with one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import needs_extra

_CHUNK = 1 << 22  # weights handled at a time beside the matrix itself: 16 MiB of float32
_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None


def row_ranges(n_out: int, n_in: int, chunk: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are handled at a time: about `chunk` numbers."""
    rows = max(1, chunk // n_in)
    for begin in range(0, n_out, rows):
        yield begin, min(begin + rows, n_out)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy's BLAS runs with one thread while any thread is inside; the setting is of the whole process.

    With other numbers of threads it rounds differently.
    """
    global _blas_users, _blas_limit
    with needs_extra("cli"):
        from threadpoolctl import threadpool_limits
    with _blas_lock:
        if _blas_users == 0:
            _blas_limit = threadpool_limits(1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.restore_original_limits()
