"""A server in a process of its own, as users start it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ServerProcess:
    """`seeddelta serve` on a free port. `url` is its address; `process` the running program."""

    def __init__(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "seeddelta", "serve", "--port", "0", "--threads", "2", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("serving "):
                self.url = line.split()[-1].removesuffix("/v1")
                return
        raise AssertionError("".join(self.lines))

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM. Returns the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()


@contextmanager
def running_server(*arguments: str) -> Iterator[ServerProcess]:
    server = ServerProcess(arguments)
    try:
        yield server
    finally:
        server.stop()
