"""`use_mlock`: what a SeedΔ model really has in memory stays there, its placeholders not counted."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterable, Iterator

from ..errors import OutOfMemoryError


def lock_memory(places: Iterable[tuple[int, int]]) -> int:
    """Lock the pages of (address, bytes), and read them from the disk now. Returns the bytes.

    They are free again when they are no longer mapped. Raises OutOfMemoryError when the system refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = list(_pages(places))
    total = sum(size for _, size in pages)
    for address, size in pages:
        if libc.mlock(address, size) != 0:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allowed = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit / 1e6:.1f} MB"
            raise OutOfMemoryError(
                f"use_mlock: {total / 1e6:.1f} MB of the model cannot be locked in memory "
                f"({os.strerror(ctypes.get_errno())}; a process may lock {allowed}); raise the limit (ulimit -l, "
                "LimitMEMLOCK= of systemd), or leave use_mlock out"
            )
    return total


def _pages(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The whole pages of all places, each once: those that touch are one."""
    begin = end = 0
    for address, size in sorted(place for place in places if place[1]):
        first, last = address // mmap.PAGESIZE * mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        if first > end:
            if end:
                yield begin, end - begin
            begin = first
        end = max(end, last)
    if end:
        yield begin, end - begin
