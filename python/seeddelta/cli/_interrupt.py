"""Ctrl-C that is not lost: Python forgets an exception in a function that C code called, such as llama.cpp's log."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Functions of ours and of llama-cpp-python that llama.cpp calls, and finalizers, which Python calls in the same way.
_CALLED_BY_C = {"_callback", "llama_log_callback", "__del__"}
_LATER = 0.05  # seconds


@contextmanager
def interrupts() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt where it is seen: in one of those functions it comes again later."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        if at.f_code.co_name in _CALLED_BY_C:
            later = threading.Timer(_LATER, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
            return
        at = at.f_back
    raise KeyboardInterrupt
