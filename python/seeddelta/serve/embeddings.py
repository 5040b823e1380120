"""Vectors of many texts for one client."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BusyError, RequestError
from .request import Embedding
from .scheduler import Scheduler

_AHEAD = 2  # one that is computed, and one that is next: a request leaves slots and queue to others
_AGAIN = 0.02  # seconds until a full queue is asked again


class Embeddings:
    """The vectors of some texts, submitted as there is room.

    Args:
        texts: of one request, or their tokens.

    Raises RequestError for a text that cannot be taken.
    """

    def __init__(self, scheduler: Scheduler, texts: Sequence[str | Sequence[int]]) -> None:
        self._scheduler = scheduler
        self._cancelled = threading.Event()
        self.prompts: list[Sequence[int]] = []
        for index, text in enumerate(texts):
            try:
                tokens = scheduler.prompts.tokens_of(text.encode()) if isinstance(text, str) else text
                if not text:
                    raise RequestError("the text is empty")
                scheduler.prompts.check_text(tokens)
            except RequestError as error:
                raise RequestError(f"input.{index}: {error}", error.code) from None
            self.prompts.append(tokens)

    def cancel(self) -> None:
        """Stop soon; from any thread."""
        self._cancelled.set()

    def compute(self) -> list[npt.NDArray[np.float32]]:
        """One vector a text. Raises BusyError when no text could be submitted, and what went wrong with one of them;
        the others are given up then."""
        waiting: deque[Embedding] = deque()
        found: list[Any] = []
        try:
            for tokens in self.prompts:
                while len(waiting) >= _AHEAD:
                    found.append(self._result(waiting.popleft()))
                waiting.append(self._submit(tokens, first=not found and not waiting))
            found += [self._result(waiting.popleft()) for _ in range(len(waiting))]
            return found
        finally:
            for job in waiting:
                job.cancel()

    def _submit(self, tokens: Sequence[int], first: bool) -> Embedding:
        while True:
            try:
                return self._scheduler.embed(tokens)
            except BusyError:
                if first or self._scheduler.closing:
                    raise
            self._check()
            time.sleep(_AGAIN)

    def _result(self, job: Embedding) -> npt.NDArray[np.float32]:
        try:
            while True:
                self._check()
                found = job.result(timeout=_AGAIN)
                if found is not None:
                    return found
        except BaseException:
            job.cancel()
            raise

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise RequestError("cancelled")
