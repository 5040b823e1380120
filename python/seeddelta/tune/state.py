"""What an autotuning has measured so far, on disk: one record, replaced as a whole after every measurement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage.checkpoint import read_record, write_record


class State:
    """Results by name, as JSON holds them. `identity` says what was measured: those of anything else are not used."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self.identity = identity
        record = read_record(path, identity)
        self._results: dict[str, Any] = {} if record is None else record.state
        self.restored = len(self._results)

    @property
    def measured(self) -> int:
        """Results in all."""
        return len(self._results)

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """The stored result of that name, or that of `measure`, which is stored. Raises OutputError."""
        if name not in self._results:
            self._results[name] = json.loads(json.dumps(measure()))
            write_record(self._path, self.identity, self._results)
        return self._results[name]
