"""A conversation with one model: its messages, and what its replies cost."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError, RequestError
from .completions import Completions
from .scheduler import Scheduler

_FILE = re.compile(r"(?<!\S)@(\S+)")


class Conversation:
    """Messages in turns. The model's cache keeps what has been said, so only what is new is computed.

    Args:
        scheduler: of the model.
        system: the system prompt; None leaves it to the model's template.
        sampling: keywords of `create_chat_completion`.

    Attributes:
        messages: role and content, in OpenAI's form.
    """

    def __init__(
        self, scheduler: Scheduler, system: str | None = None, sampling: Mapping[str, Any] | None = None
    ) -> None:
        self._scheduler = scheduler
        self._system = system
        self._sampling = dict(sampling or {})
        self._completions: Completions | None = None
        self._running: Completions | None = None
        self._seconds = 0.0
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Begin anew, with the system prompt only."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._completions = None

    def say(self, text: str) -> Iterator[str]:
        """Pieces of the reply to a text, in which `@path` is replaced by a file. A reply that is stopped (the iterator
        is closed) is kept as far as it went.

        Raises RequestError when the conversation does not fit the context or a file cannot be read; it is then as
        before.
        """
        asked = {"role": "user", "content": with_files(text)}
        self.messages.append(asked)
        completions = Completions(self._scheduler, "chat")
        begin, reply = time.perf_counter(), ""
        try:
            self._running = completions
            options: dict[str, Any] = {"messages": self.messages, "stream": True} | self._sampling
            chunks: Any = completions.create_chat_completion(**options)
            self._completions = completions
            for chunk in chunks:
                piece = chunk["choices"][0]["delta"].get("content") or ""
                reply += piece
                if piece:
                    yield piece
        finally:
            self._running = None
            completions.cancel()
            self._seconds = time.perf_counter() - begin
            if completions.generation is None:
                self.messages.remove(asked)
            else:
                self.messages.append({"role": "assistant", "content": reply})

    def stop(self) -> None:
        """End the reply that is being written, from a handler of a signal or another thread."""
        running = self._running
        if running is not None:
            running.cancel()

    def stats(self) -> dict[str, str]:
        """What the last reply was, and how full the context is."""
        from ..evaluate.memory import read_memory

        found = {"messages": str(len(self.messages))}
        generation = None if self._completions is None else self._completions.generation
        if generation is not None:
            prompt, tokens = len(generation.prompt), len(generation.tokens)
            first = generation.first_token or 0.0
            found |= {
                "context": f"{prompt + tokens} of {self._scheduler.context_length} tokens",
                "prompt": f"{prompt} tokens, {generation.reused} of them from the cache",
                "first token": f"{first:.2f} s",
                "reply": f"{tokens} tokens, {tokens / max(self._seconds - first, 1e-9):.1f} tokens/s",
            }
        memory = read_memory().resident
        return found | ({} if memory is None else {"memory": f"{memory / 1e6:.0f} MB"})

    def save(self, path: Path) -> None:
        """Write the messages as JSON. Raises OutputError; an existing file is then as it was."""
        from ..storage.output import atomic_output

        with atomic_output(path) as temporary:
            temporary.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Go on with messages that were saved. Raises FormatError, and the conversation is as before."""
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))
            found = [{"role": str(one["role"]), "content": str(one["content"])} for one in messages]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: no saved conversation ({error}); give a file that /save wrote") from error
        self.messages, self._completions = found, None


def missing_files(text: str) -> list[str]:
    """Words of a text that begin with @ and name no file. They may be addresses, or mistakes."""
    return [name for name in _FILE.findall(text) if not _exists(name)]


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a name; no such user; NUL
        return False


def with_files(text: str) -> str:
    """The text with every `@path` replaced by the file's name and text. Raises RequestError for one that is no text."""

    def content(match: re.Match[str]) -> str:
        if not _exists(match[1]):
            return match[0]  # an address, or a name
        path = Path(match[1]).expanduser()
        try:
            return f"{path.name}:\n```\n{path.read_text(encoding='utf-8')}\n```\n"
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{path}: cannot be read as text ({error})") from error

    return _FILE.sub(content, text)
