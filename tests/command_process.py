"""Command lines in a process of their own, which starts once for all of them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

# Runs one command line after the other, for most of the time of a command is its start. The standard streams are as for
# a program whose input is /dev/null and whose output is a file.
PROGRAM = """
import json, os, sys
from seeddelta.cli.main import main
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for request in requests:
    arguments, output, errors = json.loads(request)
    for number, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    code = main(arguments)
    sys.stdout.flush(), sys.stderr.flush()
    print(code, file=answers, flush=True)
"""


class Commands:
    """A process that runs command lines; a new one where the last one ended it."""

    def __init__(self, first: str = "") -> None:
        """`first` is a statement that comes before all of them."""
        self._program = f"{first}\n{PROGRAM}"
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], folder: Path) -> tuple[int, str]:
        """Exit code (that of the process where the command ended it) and what was said on stderr."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        errors = folder / "stderr"
        print(json.dumps([arguments, str(folder / "stdout"), str(errors)]), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], 120)
        assert ready, (arguments, "takes more than 120 seconds")
        answer = self._process.stdout.readline()
        if not answer:
            code, self._process = self._process.wait(), None
        return int(answer) if answer else code, errors.read_text(errors="replace")

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
