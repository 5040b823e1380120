"""`seeddelta chat` in a pseudo-terminal, as people use it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("prompt_toolkit")
pytest.importorskip("fastapi")

READY = "⏎"  # stands for what prompt_toolkit sends when it begins to read a line
QUESTION = "What is the capital of France? Answer in one word."
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, *arguments: str, command: str = "chat") -> None:
        self._mine, theirs = pty.openpty()
        self._shown, self._read = b"", 0  # all bytes; characters that were waited for
        environment = os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "COLUMNS": "200"}
        program = [sys.executable, "-m", "seeddelta", command, "--threads", "2", *arguments]
        self.process = subprocess.Popen(
            program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    def send(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def wait_for(self, text: str, seconds: float = 30) -> str:
        """What is shown, after what was waited for before, up to a text; the test fails without it."""
        end = time.monotonic() + seconds
        while (at := self._plain().find(text, self._read)) < 0:
            ready, _, _ = select.select([self._mine], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} is not in {self._plain()[self._read :]!r}"
            try:
                self._shown += os.read(self._mine, 4096)
            except OSError:  # the program has ended
                assert text in self._plain()[self._read :]
        begin, self._read = self._read, at + len(text)
        return self._plain()[begin : self._read]

    def _plain(self) -> str:
        return _ESCAPES.sub("", self._shown.decode("utf-8", "replace").replace("\x1b[?2004h", READY))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)


@pytest.fixture
def terminal(smollm2_quantized: Path) -> Iterator[Terminal]:
    found = Terminal("-m", str(smollm2_quantized), "--temp", "0", "--ctx", "1024", "-n", "400")
    yield found
    found.close()


def test_a_conversation(terminal: Terminal, tmp_path: Path) -> None:
    saved, facts = tmp_path / "talk.json", tmp_path / "facts.txt"
    facts.write_text("The cat's name is Hannibal.")
    terminal.wait_for("/help lists")
    terminal.send(f"{QUESTION}\r")
    terminal.wait_for("Paris")
    terminal.wait_for(READY)
    terminal.send(f"/save {saved}\r")
    terminal.wait_for("written to")
    messages = json.loads(saved.read_text())
    assert [one["role"] for one in messages] == ["user", "assistant"]
    terminal.send("/stats\r")
    assert "tokens/s" in terminal.wait_for("memory")
    terminal.send("/reset\r")
    terminal.wait_for("a new conversation")
    terminal.send(f"/load {saved}\r")
    terminal.wait_for("2 messages from")
    terminal.send(f"Repeat this: @{facts}\r")
    terminal.send(f"/save {saved}\r")  # written ahead: it is read when the reply has ended
    terminal.wait_for("written to")
    assert json.loads(saved.read_text())[2]["content"].startswith("Repeat this: facts.txt:\n```\nThe cat's name")
    terminal.send("/save\r")
    terminal.wait_for("give the name")
    terminal.send("/foo\r")
    terminal.wait_for("unknown command /foo")
    terminal.wait_for("this list")
    terminal.send("Hi @nofile and me@home\r")
    terminal.wait_for("nofile: no such file; the model gets the word @nofile")
    terminal.wait_for(READY)
    terminal.send("/load /nowhere.json\r")
    terminal.wait_for("no saved conversation")
    terminal.send("/exit\r")
    assert terminal.process.wait(20) == 0


def test_stopping_a_reply_and_the_up_arrow(terminal: Terminal) -> None:
    terminal.wait_for(READY)
    terminal.send("Write a long story about a king, a dragon, a city and a river.\r")
    terminal.wait_for("Once upon")  # it has begun
    terminal.send("\x03")
    terminal.wait_for("[stopped]")
    terminal.wait_for(READY)
    terminal.send("\x1b[A")
    terminal.wait_for("a dragon, a city")  # the line that was written before
    terminal.send("\x03")
    terminal.send("word " * 1100 + "\r")
    terminal.wait_for("shorten the prompt")
    terminal.send("/exit\r")
    assert terminal.process.wait(20) == 0


def test_run_without_a_prompt_is_a_chat(smollm2_quantized: Path) -> None:
    terminal = Terminal(str(smollm2_quantized), "--temp", "0", "-n", "20", command="run")
    try:
        terminal.wait_for("/help lists")
        terminal.send(f"{QUESTION}\r")
        terminal.wait_for("Paris")
        terminal.wait_for(READY)
        terminal.send("/exit\r")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()


@pytest.mark.parametrize(("options", "message"), [
    ((), "has no chat template and only continues texts; give --prompt TEXT or --file FILE"),
    (("--top-k", "3"), "without a prompt this is a chat, which has no top_k"),
])  # fmt: skip
def test_run_without_a_prompt_that_is_no_chat(
    options: tuple[str, ...], message: str, smollm2_quantized: Path, tiny_dense: Path
) -> None:
    terminal = Terminal(str(smollm2_quantized if options else tiny_dense), *options, command="run")
    try:
        terminal.wait_for(message)
        assert terminal.process.wait(20) == 1
    finally:
        terminal.close()


def test_lines_of_a_pipe(smollm2_quantized: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    command = [sys.executable, "-m", "seeddelta", "chat", "-m", str(smollm2_quantized), "-t", "2", "--temp", "0"]
    command += ["-n", "20", "--system", "You are a pirate."]
    lines = f"{QUESTION}\n/stats\n/save {saved}\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True)
    messages = json.loads(saved.read_text())
    assert messages[0] == {"role": "system", "content": "You are a pirate."}
    assert messages[2]["content"] in done.stdout
    assert "of 4096 tokens" in done.stdout
