"""The parent's side of worker.py: a model in its own process, so that its memory and threads are its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import errors
from ..children import python_command
from ..errors import EvaluationError, SeedDeltaError
from ..session import system_info


class Worker:
    """A process that has one model open. Ends with `close` or the `with` block.

    `options` are those of `open_model`; `config` is a dict of RuntimeConfig's fields. An exception in the process is
    raised here as the same class when it is one of seeddelta's, else as EvaluationError.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(path)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            python_command("from seeddelta.evaluate import worker; worker.main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            loaded = self.request("load", path=str(self.path), **options)
        except BaseException:
            self.close()
            raise
        self.memory_before: dict[str, Any] = loaded["before"]
        self.memory_loaded: dict[str, Any] = loaded["after"]

    def request(
        self, command: str, *, on_progress: Callable[[int, int, str], None] | None = None, **arguments: Any
    ) -> Any:
        """Run a command of `worker.Session` and return its result. Raises what the command raised, or EvaluationError
        when the process died."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"command": command} | arguments) + "\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._dead(command) from None
        for line in process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:  # what a library, or Python at its start, printed
                continue
            if not isinstance(answer, dict):
                continue
            if "progress" in answer:
                if on_progress is not None:
                    on_progress(*answer["progress"])
            elif "error" in answer:
                raise self._error(answer["error"]["type"], answer["error"]["message"])
            else:
                return answer["result"]
        raise self._dead(command)

    def _error(self, name: str, message: str) -> SeedDeltaError:
        known = getattr(errors, name, None)
        if isinstance(known, type) and issubclass(known, SeedDeltaError):
            return known(message)
        return EvaluationError(f"{self.path}: {name}: {message}")

    def _dead(self, command: str) -> EvaluationError:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        if code == -signal.SIGSEGV and "AMX_INT8 = 1" in (system_info() or ""):
            hint = "; llama.cpp has AMX code here, which GCC before 12.4 compiles wrongly: see Install in the tutorial"
        self._log.seek(0)
        last = self._log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return EvaluationError(
            f"{self.path}: the process of this model {how} during {command!r}{hint}{f' ({last})' if last else ''}"
        )

    def close(self) -> None:
        """End the process."""
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()
