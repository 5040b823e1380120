"""NumPy's linear algebra with one thread: with other numbers of threads it rounds differently."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._extras import needs_extra

_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy's BLAS runs with one thread while any thread is inside; the setting is of the whole process."""
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
