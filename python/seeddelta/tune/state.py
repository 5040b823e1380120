"""What an autotuning has measured so far, on disk: one JSON file, replaced as a whole after every measurement."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..gguf.writer import atomic_output


class State:
    """Results by name, as JSON holds them. `identity` says what was measured: those of anything else are not used."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._results: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["identity"] == self.identity:
                self._results = dict(stored["results"])
        self.restored = len(self._results)

    @property
    def measured(self) -> int:
        """Results in all."""
        return len(self._results)

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """The stored result of that name, or that of `measure`, which is stored. Raises OutputError."""
        if name not in self._results:
            self._results[name] = json.loads(json.dumps(measure()))
            with atomic_output(self._path) as temporary:
                text = json.dumps({"identity": self.identity, "results": self._results}, indent=1)
                temporary.write_text(text, encoding="utf-8")
        return self._results[name]
