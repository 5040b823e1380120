"""Standard streams that never cost the work: closed, full, or of an encoding that lacks a character."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any


class _Raw(io.RawIOBase):
    """A file descriptor whose failed writes are remembered and passed over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failed: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.failed is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                raise
            except OSError as error:
                self.failed = error
        return size


_raw: dict[str, _Raw] = {}


def prepare() -> None:
    """Make the process's streams take whatever is written; once, at the start of the program.

    A descriptor of 0 to 2 that is closed becomes /dev/null: the next file that is opened would have its number
    otherwise, and be written to. Streams that somebody has replaced (tests, notebooks) stay as they are.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (open as long as the process)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or name in _raw:
            continue
        encoding = "utf-8"
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
            encoding = stream.encoding
            stream.detach()  # its end would close the descriptor
        _raw[name] = raw = _Raw(number)
        text = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace",
            line_buffering=number == 2 or raw.isatty(),
        )  # fmt: skip
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def finish(code: int, *, wrote_files: bool) -> int:
    """Flush, say what could not be written, and return the exit code of the program.

    A command that wrote the files that it was asked for has done its work, whatever became of its messages.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    raw = _raw.get("stdout")
    if raw is None or raw.failed is None:
        return code
    if raw.failed.errno != errno.EPIPE:  # whoever closed a pipe wants no more
        print(f"seeddelta: stdout: cannot be written ({raw.failed.strerror})", file=sys.stderr, flush=True)
    return code if code or wrote_files else 1
