"""The progress bar and Ctrl-C: the bar's lock is free for other threads, and no interrupt is lost."""

from __future__ import annotations

import ctypes
import io
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from seeddelta.cli._interrupt import interrupts
from seeddelta.progress import tqdm


@pytest.fixture(params=["tqdm's own lock", "a lock of threads"], autouse=True)
def lock(request: pytest.FixtureRequest) -> Iterator[None]:
    """tqdm's default says nothing when it is taken; the commands have an RLock."""
    from tqdm.std import TqdmDefaultWriteLock

    before: Any = tqdm.get_lock()
    tqdm.set_lock(threading.RLock() if request.param == "a lock of threads" else TqdmDefaultWriteLock())
    yield
    tqdm.set_lock(before)


def in_a_thread(work: Any) -> bool:
    """Whether it ends within a few seconds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_an_interrupted_bar_frees_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = tqdm(total=3, file=io.StringIO(), mininterval=0)

    def interrupt(*arguments: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bar, "display", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bar.refresh()
    assert in_a_thread(bar.refresh)
    assert in_a_thread(bar.close)


def test_threads_draw_one_bar() -> None:
    out = io.StringIO()
    bar = tqdm(total=300, file=out, mininterval=0, miniters=1)
    for _ in range(3):
        assert in_a_thread(lambda: [bar.update() for _ in range(100)])
    bar.close()
    assert bar.n == 300
    assert "300/300" in out.getvalue()


def test_an_interrupt_in_a_function_that_c_calls_comes_again() -> None:
    """ctypes prints the exception there and goes on."""
    ran = []

    def _callback() -> None:
        signal.raise_signal(signal.SIGINT)
        ran.append(True)

    called = ctypes.CFUNCTYPE(None)(_callback)
    before = signal.getsignal(signal.SIGINT)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupts():  # noqa: PT012
        called()
        time.sleep(60)
    assert ran
    assert time.monotonic() - begin < 50
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), interrupts():
        signal.raise_signal(signal.SIGINT)
