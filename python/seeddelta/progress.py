"""The progress bar of all commands: tqdm's, whose lock is free again when Ctrl-C comes while it draws."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm as _tqdm


class tqdm(_tqdm):  # type: ignore[type-arg]
    """tqdm's bar. Its own `refresh` keeps the lock when it is interrupted, and other threads wait for it for good."""

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        lock: Any = self.get_lock()  # type: ignore[no-untyped-call]
        if nolock or self.disable:
            super().refresh(nolock=nolock)
        elif lock.acquire(*(lock_args or ())) is not False:  # tqdm's default lock says nothing
            try:
                super().refresh(nolock=True)
            finally:
                lock.release()
