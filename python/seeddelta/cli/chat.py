"""`seeddelta chat`: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SeedDeltaError, needs_extra
from ..settings.serving import ChatSettings, ModelOptions, Talking
from ._command import from_settings

if TYPE_CHECKING:
    from ..serve.conversation import Conversation

_HELP = """\
/save FILE   save the conversation (JSON)
/load FILE   continue a saved conversation
/reset       start over
/stats       tokens, speed and memory
/help        this list
/exit        leave (or Ctrl-D)
@FILE in a line puts the file's text there. Ctrl-C stops a reply."""


@from_settings(ChatSettings)
def command(settings: ChatSettings) -> None:
    """Chat with a model. /help lists the commands; Ctrl-C stops a reply, Ctrl-D ends.

    Example: seeddelta chat model.seeddelta.gguf --system "Answer in one sentence."
    """
    converse(settings)


def converse(settings: ChatSettings) -> None:
    """Load the model and talk until the input ends."""
    with needs_extra("cli"):
        from rich.console import Console
    from ..serve.conversation import Conversation, with_files
    from ..serve.models import open_scheduler
    from ..session import require_logits

    read = _reader(settings.history)
    shared = {name: getattr(settings, name) for name in Talking.model_fields}
    threads = settings.thread_count
    options = ModelOptions(path=settings.model, parallel=1, threads=threads, runtime=settings.runtime, **shared)
    sampling = {"temperature": settings.temperature, "max_tokens": settings.n_predict, "seed": settings.seed}
    system = None if settings.system is None else with_files(settings.system)
    scheduler = open_scheduler(options)
    try:
        require_logits(scheduler.llm)
        conversation = Conversation(scheduler, system, sampling)
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        console.print(f"{options.name}; /help lists the commands", style="dim")
        _say_missing(settings.system or "", console)
        _converse(conversation, console, read)
    finally:
        scheduler.close()
        scheduler.llm.close()


def _reader(history: Path | None) -> Callable[[], str]:
    """Reads a line, by prompt_toolkit in a terminal. Raises EOFError at the end."""
    if not sys.stdin.isatty():
        return input
    with needs_extra("cli"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
    session: PromptSession[str] = PromptSession(history=FileHistory(str(history)) if history else InMemoryHistory())
    return lambda: session.prompt("> ")


def _converse(conversation: Conversation, console: Any, read: Callable[[], str]) -> None:
    while True:
        try:
            line = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue  # the line is thrown away, as in a shell
        try:
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                _obey(line, conversation, console)
            elif line:
                _reply(line, conversation, console)
        except SeedDeltaError as error:
            console.print(str(error), style="red")


def _say_missing(text: str, console: Any) -> None:
    """What @FILE in a text names no file: the model gets these words as they are."""
    from ..serve.conversation import missing_files

    for name in missing_files(text):
        console.print(f"{name}: no such file; the model gets the word @{name}", style="red")


def _reply(line: str, conversation: Conversation, console: Any) -> None:
    stopped = False
    _say_missing(line, console)

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        conversation.stop()

    # a KeyboardInterrupt would be lost where Python ignores exceptions, as in a callback of a library
    before = signal.signal(signal.SIGINT, stop)
    try:
        with closing(conversation.say(line)) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                console.out(piece, end="", highlight=False)
                console.file.flush()
                if stopped:
                    break
    finally:
        signal.signal(signal.SIGINT, before)
    if stopped:
        console.print(" [stopped]", style="dim", end="")
    console.print()


def _obey(line: str, conversation: Conversation, console: Any) -> None:
    word, _, argument = line.partition(" ")
    path = Path(argument.strip()).expanduser()
    if word in ("/save", "/load") and not argument.strip():
        console.print(f"{word} FILE: give the name of a file", style="red")
    elif word == "/save":
        conversation.save(path)
        console.print(f"written to {path}", style="dim")
    elif word == "/load":
        conversation.load(path)
        console.print(f"{len(conversation.messages)} messages from {path}", style="dim")
    elif word == "/reset":
        conversation.reset()
        console.print("a new conversation", style="dim")
    elif word == "/stats":
        for name, value in conversation.stats().items():
            console.print(f"{name:>12}  {value}")
    else:
        if word != "/help":
            console.print(f"unknown command {word}", style="red")
        console.print(_HELP)
