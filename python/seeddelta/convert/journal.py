"""What a `quantize` that was stopped had done: a small JSON file beside the hidden states, replaced as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from ..calibrate.groups import Group
from ..gguf.writer import atomic_output, output_error

_NAME = "done.json"


class Journal:
    """The folder of a run; a context manager. `identity` decides its results: work of any other is thrown away.

    `keys` are the keys of the parts of finished tensors, by name. The folder goes with `finish`, and otherwise stays.
    Raises OutputError when it cannot be written.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self._identity = json.loads(json.dumps(identity))
        self._done = False
        self.groups: list[Group] | None = None
        self.steps_done = 0
        self.keys: dict[str, str] = {}

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(exist_ok=True)
            stored = json.loads((self.folder / _NAME).read_text(encoding="utf-8"))
            if stored["identity"] == self._identity:
                self.groups = [Group(*group) for group in stored["groups"]]
                self.steps_done, self.keys = stored["steps_done"], stored["keys"]
                return self
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        except OSError as error:
            raise output_error(self.folder, error) from error
        self._clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done or self.groups is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, groups: list[Group]) -> None:
        """Nothing is done yet; `groups` is empty for a model that is run as a whole."""
        self.groups = groups
        self._save()

    def done(self, step: int, keys: dict[str, str]) -> None:
        """Step after step is finished, with these parts."""
        if step < self.steps_done:
            return
        self.steps_done = step + 1
        self.keys |= keys
        self._save()

    def forget(self) -> None:
        """Begin again, with the same groups."""
        self.steps_done, self.keys = 0, {}
        self._save()

    def finish(self) -> None:
        """The output is written: the folder goes when the block ends."""
        self._done = True

    def _save(self) -> None:
        assert self.groups is not None
        groups = [[group.first, group.last, group.scale] for group in self.groups]
        state = dict(identity=self._identity, groups=groups, steps_done=self.steps_done, keys=self.keys)
        with atomic_output(self.folder / _NAME) as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
