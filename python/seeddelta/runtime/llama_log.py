"""llama.cpp's log: hidden where a model is opened quietly, kept for the exception when llama.cpp refuses it.

llama-cpp-python hides the log of `verbose=False` by replacing file descriptors 1 and 2 and `sys.stdout` and
`sys.stderr` of the whole process. Two threads that do so together restore each other's replacement, and the process has
lost its output. Here its suppression is replaced by a mark of the thread, which our logging callback reads.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import llama_cpp
from llama_cpp import _internals, _logger, _utils, llama, llama_chat_format
from llama_cpp import llama_cpp as native

from ..errors import ModelError, SeedDeltaError

_ERROR, _CONTINUED = 4, 5  # GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_CONT of ggml.h
_MOST = 64  # lines that are kept
# What llama.cpp says last whatever the reason was, and what stands before a reason.
_GENERAL = ("failed to load model", "failed to initialize the context")
_BEFORE = "error loading model: "


class _Local(threading.local):
    def __init__(self) -> None:
        self.quiet = 0  # suppressions around this point of the thread
        self.lines: list[str] | None = None  # errors since `collected` began
        self.error = False  # the line before was an error


_local = _Local()
_users: tuple[Any, Any] | None = None  # a callback that somebody set, and its data


class _Suppression:
    """In place of llama-cpp-python's `suppress_stdout_stderr`: the same use, for this thread's log alone."""

    def __init__(self, disable: bool = True) -> None:
        self.disable = disable

    def __enter__(self) -> _Suppression:
        _local.quiet += not self.disable
        return self

    def __exit__(self, *_: object) -> None:
        _local.quiet -= not self.disable


@native.llama_log_callback  # type: ignore[untyped-decorator]
def _callback(level: int, text: bytes, _: Any) -> None:
    line = text.decode("utf-8", "replace")
    _local.error = level == _ERROR or (level == _CONTINUED and _local.error)
    if _local.error and _local.lines is not None:
        _local.lines[:] = [*_local.lines, line][-_MOST:]
    if _local.quiet:
        return
    function, data = _users or (_logger.llama_log_callback, None)
    with suppress(OSError, ValueError):  # stderr may be full or closed
        function(level, line.encode(), data)


def _set(original: Callable[..., Any], function: Any, data: Any = None) -> None:
    """A callback of the user's gets the log through ours, where nothing is hidden."""
    global _users
    _users = (function, data) if function else None
    original(_callback, ctypes.c_void_p(0))


@functools.cache
def install() -> None:
    """Take llama-cpp-python's log over, once a process: from here on no stream is replaced by whoever opens a model."""
    for module in (_utils, _internals, llama, llama_chat_format):
        if hasattr(module, "suppress_stdout_stderr"):
            module.suppress_stdout_stderr = _Suppression
    native.llama_log_set(_callback, ctypes.c_void_p(0))
    for module in (native, llama_cpp):
        module.llama_log_set = functools.partial(_set, module.llama_log_set)
    formatter = llama_chat_format.Jinja2ChatFormatter
    formatter.__init__ = _tolerant(formatter.__init__)


def _tolerant(original: Callable[..., None]) -> Callable[..., None]:
    """Of a chat template that Jinja cannot read the reason is raised when somebody chats, not when a model opens."""

    @functools.wraps(original)
    def init(self: Any, template: str, *arguments: Any, **options: Any) -> None:
        import jinja2

        try:
            original(self, template, *arguments, **options)
        except (jinja2.TemplateError, RecursionError) as error:
            reason = json.dumps(f"the model's chat template cannot be read: {error}")
            original(self, f"{{{{ raise_exception({reason}) }}}}", *arguments, **options)

    return init


@contextmanager
def collected(*, quiet: bool = True) -> Iterator[list[str]]:
    """The errors that llama.cpp logs in this thread meanwhile; with `quiet` nothing of its log is shown."""
    install()
    before, _local.lines = _local.lines, []
    _local.quiet += quiet
    try:
        yield _local.lines
    finally:
        _local.quiet -= quiet
        _local.lines = before


@contextmanager
def refusals(
    path: str | os.PathLike[str], error: type[SeedDeltaError] = ModelError, *, quiet: bool = True
) -> Iterator[None]:
    """While a model is opened: whatever llama.cpp or llama-cpp-python raises becomes `error` with llama.cpp's reason.

    Exceptions of ours and MemoryError pass. `path` is what the message names.
    """
    with collected(quiet=quiet) as lines:
        try:
            yield
        except (SeedDeltaError, MemoryError):
            raise
        except Exception as raised:
            reason = reason_of(lines) or f"{raised}" or type(raised).__name__
            raise error(f"{path}: llama.cpp cannot load it: {reason}") from raised


def reason_of(lines: list[str]) -> str:
    """The line of llama.cpp's log that says why: the last error that is no mere "failed to load model"."""
    said = [line for text in lines for line in text.splitlines() if line.strip()]
    for line in reversed(said):
        if _BEFORE in line:
            return line.partition(_BEFORE)[2].strip()
    for line in reversed(said):
        if not any(words in line for words in _GENERAL):
            return line.strip()
    return said[-1].strip() if said else ""


@contextmanager
def native_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """A name of a file that llama-cpp-python can encode: its own, or one of /proc where it is not UTF-8."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        handle = os.open(name, os.O_RDONLY)
        try:
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
    else:
        yield name
