"""What a `quantize` that was stopped had done: a record (checkpoint.py) beside the hidden states."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from ..calibrate.groups import Group
from ..storage.checkpoint import read_record, write_record
from ..storage.output import output_error

_NAME = "done.sdpart"


class Journal:
    """The folder of a run; a context manager. `identity` decides its results: work of any other is thrown away.

    `keys` are the keys of the parts of finished tensors, by name. The folder goes with `finish`, and otherwise stays.
    With `tell` a line on stderr says what an earlier run left.
    Raises OutputError when it cannot be written.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], *, tell: bool = False) -> None:
        self.folder = folder
        self._tell = tell
        self._identity = identity
        self._done = False
        self.groups: list[Group] | None = None
        self.steps_done = 0
        self.keys: dict[str, str] = {}

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(exist_ok=True)
            there = (self.folder / _NAME).is_file()
            record = read_record(self.folder / _NAME, self._identity)
            if record is None:
                if there and self._tell:
                    made = "was made from another model or with other options, and is not used"
                    print(f"starting over: {self.folder.parent} {made}", file=sys.stderr)
                for path in self.folder.iterdir():
                    path.unlink()
                return self
        except OSError as error:
            raise output_error(self.folder, error) from error
        self.groups = [Group(*group) for group in record.state["groups"]]
        self.steps_done, self.keys = record.state["steps_done"], record.state["keys"]
        if self.keys and self._tell:
            print(f"continuing: {self.folder.parent} has {len(self.keys)} finished matrices", file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
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
        state = dict(groups=groups, steps_done=self.steps_done, keys=self.keys)
        write_record(self.folder / _NAME, self._identity, state)
