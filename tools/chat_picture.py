"""docs/figures/chat.svg: a conversation of `seeddelta chat` in a pseudo-terminal, as it is shown.

python tools/chat_picture.py model.seeddelta.gguf
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "chat.svg"
LINES = ("What is the capital of France?", "And of Italy? One word.", "/stats", "/help")
WIDTH = 92
_READING = b"\x1b[?2004h"  # prompt_toolkit begins to read a line
_READ = b"\x1b[?2004l"  # it has one
# all escapes but those of colors
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-ln-zA-Z]|\x1b[=>]|\r")
SECONDS = 120.0


class Terminal:
    """`seeddelta chat` in a pseudo-terminal."""

    def __init__(self, model: str) -> None:
        self._mine, theirs = pty.openpty()
        command = [sys.executable, "-m", "seeddelta", "chat", "-m", model, "--temp", "0", "-t", "2", "-n", "80"]
        environment = os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self._shown = b""

    def until(self, mark: bytes) -> str:
        """What is shown before a mark, with its colors."""
        end = time.monotonic() + SECONDS
        while mark not in self._shown:
            if not select.select([self._mine], [], [], max(0.0, end - time.monotonic()))[0]:
                raise SystemExit(f"no answer: {self._shown!r}")
            self._shown += os.read(self._mine, 4096)
        shown, _, self._shown = self._shown.partition(mark)
        return _ESCAPES.sub("", shown.decode("utf-8", "replace"))

    def send(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._mine)


def conversation(model: str) -> list[str]:
    """What the terminal shows: the lines that were typed, and what followed each."""
    terminal = Terminal(model)
    shown = [f"$ seeddelta chat {Path(model).name}", terminal.until(_READING).rstrip("\n")]
    for line in LINES:
        terminal.send(f"{line}\r")
        terminal.until(_READ)  # the line as it is typed, drawn again with every key
        shown += [f"> {line}", terminal.until(_READING).strip("\n")]
    terminal.close()
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--output", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for part in conversation(arguments.model):
        console.print(Text.from_ansi(part))
    console.save_svg(str(arguments.output), title="seeddelta chat", unique_id="chat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
