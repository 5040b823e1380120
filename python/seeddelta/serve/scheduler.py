"""Many requests on one context: continuous batching over llama.cpp's C API.

A thread of its own decodes. Each pass takes one step of every request that has a slot: a reply's next token, or a piece
of a prompt. So requests come and go at any time, a matrix is read once for all of them, and a long prompt holds the
others up for one piece only. Each slot is a sequence with its own part of the KV cache, so that a reply does not depend
on its neighbors.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from llama_cpp import _internals as internals
from llama_cpp import llama_cpp as native

from ..errors import BusyError
from ..settings.serving import CHUNK, QUEUE
from .counters import Counters
from .prompts import Prompts
from .request import Generation, Limits, token_score
from .sampling import Row, Sampler, Sampling
from .slots import Slot, choose_slot
from .vocabulary import Vocabulary

T = TypeVar("T")


class Scheduler:
    """Serves one model, loaded with `seeddelta.load(path, parallel=N)`. It must not be used otherwise meanwhile.

    Args:
        llm: the model; it stays open when the scheduler is closed.
        queue: requests that may wait for a slot; one more is a BusyError.
        chunk: tokens of prompts decoded in one pass, so that others' replies go on in between.
    """

    def __init__(self, llm: Any, *, queue: int = QUEUE, chunk: int = CHUNK) -> None:
        self.llm = llm
        self.parallel = getattr(llm, "parallel", 1)
        self.context_length = llm.n_ctx() // self.parallel
        self.queue_limit = queue
        self.counters = Counters()
        self._context = llm._ctx
        self.vocabulary = Vocabulary(llm)
        self._chunk = min(chunk, llm.n_batch)
        self.prompts = Prompts(self.vocabulary, self.context_length)
        memory = native.llama_get_memory(llm.ctx)
        self._batch = internals.LlamaBatch(n_tokens=llm.n_batch, embd=0, n_seq_max=1, verbose=False)
        self._slots = [Slot(index, memory) for index in range(self.parallel)]
        for slot in self._slots:  # what `Llama`'s own methods have left there
            if memory is not None:
                native.llama_memory_seq_rm(memory, slot.index, -1, -1)
        llm.reset()
        self._waiting: deque[Generation] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._run, name="seeddelta-scheduler", daemon=True)
        self._thread.start()

    def submit(
        self, prompt: Sequence[int], sampling: Sampling | None = None, limits: Limits | None = None
    ) -> Generation:
        """Ask for a reply to the tokens of a prompt.

        Raises RequestError for an empty or too long prompt, a number that is no token, a wrong grammar, or a model that
        writes no text; BusyError when too many wait.
        """
        limits = limits or Limits()
        self.prompts.check(prompt, 0 if limits.max_tokens == 0 else 1)
        room = self.context_length - len(prompt)
        wanted = room if limits.max_tokens is None else min(limits.max_tokens, room)
        sampler = Sampler(self.vocabulary, sampling or Sampling())
        job = Generation(prompt, sampler, wanted, limits)
        try:
            self._enqueue(job)
        except BaseException:
            job.close()
            raise
        return job

    @property
    def closing(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing

    @property
    def waiting(self) -> int:
        """Requests without a slot yet."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Slots at work."""
        return sum(slot.job is not None for slot in self._slots)

    def between_passes(self, function: Callable[[], T]) -> T:
        """Result of a function that is called while nothing is decoded: counters of a model must not be read
        otherwise."""
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except Exception as error:  # the caller's, not this thread's
                result.set_exception(error)

        with self._changed:
            if self._ended:
                call()
            else:
                self._calls.append(call)
                self._changed.notify_all()
        return result.result()

    def drain(self) -> None:
        """Take no more requests; those that wait are refused, those at work go on."""
        with self._changed:
            self._closing = True
            while self._waiting:
                job = self._waiting.popleft()
                job.fail(BusyError("the server is stopping; ask another one"))
                job.close()
            self._changed.notify_all()

    def cancel_all(self) -> None:
        """End the replies that are at work where they are."""
        for slot in self._slots:
            job = slot.job
            if job is not None:
                job.cancel()

    def close(self) -> None:
        """Stop everything that is at work and end the thread."""
        self.drain()
        self.cancel_all()
        self._thread.join()
        self._batch.close()

    def _enqueue(self, job: Generation) -> None:
        with self._changed:
            if self._closing:
                raise BusyError("the server is stopping; ask another one")
            if len(self._waiting) >= self.queue_limit + self.parallel - self.active:
                self.counters.rejected += 1
                raise BusyError(f"{len(self._waiting)} requests are waiting already; try again later")
            self.counters.requests += 1
            self._waiting.append(job)
            self._changed.notify_all()

    # the scheduler's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._calls:
                    self._calls.popleft()()
                if not self._waiting and not self.active:
                    if self._closing:
                        self._ended = True
                        return
                    self._changed.wait()
                    continue
                self._admit()
            working = self._working()
            if not working:
                continue
            try:
                self._decode(self._plan(working))
            except Exception as error:  # the reason is told to every request that was in this pass
                for slot in working:
                    self._fail(slot, error)

    def _admit(self) -> None:
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
            self.counters.finished("cancelled")
            job.end("cancelled")
            job.close()
        while self._waiting:
            slot = choose_slot(self._slots, self._waiting[0].prompt)
            if slot is None:
                return
            job = self._waiting.popleft()
            job.started = time.perf_counter()
            self.counters.queue_seconds += job.started - job.arrived
            job.reused = slot.admit(job, reuse=not job.scored)
            self.counters.prompt_tokens += len(job.prompt)
            self.counters.reused_tokens += job.reused

    def _working(self) -> list[Slot]:
        """Slots with a job, without those whose job was cancelled."""
        for slot in self._slots:
            if slot.job is not None and slot.job.cancelled:
                slot.job.end("cancelled")
                self.counters.finished("cancelled")
                slot.leave()
        return [slot for slot in self._slots if slot.job is not None]

    def _plan(self, slots: list[Slot]) -> list[tuple[Slot, int]]:
        """How many tokens of each slot's `todo` are decoded now."""
        room = self.llm.n_batch - sum(len(slot.todo) for slot in slots if slot.generating)
        prompts = [slot for slot in slots if not slot.generating]
        left = max(len(prompts), min(self._chunk, room))
        counts: dict[int, int] = {}
        for position, slot in enumerate(sorted(prompts, key=lambda slot: len(slot.todo))):
            share = max(1, left // (len(prompts) - position))
            counts[slot.index] = min(share, len(slot.todo))
            left -= counts[slot.index]
        return [(slot, len(slot.todo) if slot.generating else counts[slot.index]) for slot in slots]

    def _decode(self, plan: list[tuple[Slot, int]]) -> None:
        rows: dict[int, tuple[int, int]] = {}  # slot -> row of the batch, and of the logits, of its first logits
        outputs = 0
        self._batch.reset()
        for slot, count in plan:
            first = self._first_output(slot, count)
            rows[slot.index] = self._batch.batch.n_tokens + first, outputs
            outputs += count - first
            self._append(slot, count, first)
        begin = time.perf_counter()
        self._context.decode(self._batch)
        self.counters.decoded(len(plan), self._batch.batch.n_tokens, time.perf_counter() - begin)
        logits = None
        if outputs:  # in the order of the batch
            logits = np.ctypeslib.as_array(native.llama_get_logits(self.llm.ctx), shape=(outputs, self.vocabulary.size))
        for slot, count in plan:
            row, output = rows[slot.index]
            if logits is not None and slot.scores_prompt:
                slot.score_prompt(logits[output : output + count])
                row, output = row + count - 1, output + count - 1
            slot.cached += slot.todo[:count]
            if count < len(slot.todo):
                del slot.todo[:count]
                continue
            assert logits is not None
            try:
                self._advance(slot, row, logits[output])
            except Exception as error:  # of one reply; the others go on
                self._fail(slot, error)

    def _first_output(self, slot: Slot, count: int) -> int:
        """The first of the next tokens whose logits are needed."""
        if slot.scores_prompt:
            return 0
        return count - 1 if count == len(slot.todo) else count

    def _append(self, slot: Slot, count: int, first_output: int) -> None:
        batch = self._batch.batch
        for offset in range(count):
            at = batch.n_tokens
            batch.token[at] = slot.todo[offset]
            batch.pos[at] = len(slot.cached) + offset
            batch.seq_id[at][0] = slot.index
            batch.n_seq_id[at] = 1
            batch.logits[at] = offset >= first_output
            batch.n_tokens = at + 1

    def _advance(self, slot: Slot, row: int, logits: Row) -> None:
        """Choose the token that follows what was decoded, from its logits f32[n_vocab], a row of the batch."""
        job = slot.job
        assert job is not None
        if job.max_tokens == 0:
            job.end("length")
        else:
            token = job.sampler.sample(self._context, row, logits)
            if token is None or self.vocabulary.is_end(token):
                job.end("stop")
            else:
                score = None if job.logprobs is None else token_score(token, logits, job.logprobs)
                job.add(token, self.vocabulary.bytes_of(token), score)
                self.counters.generated_tokens += 1
        if job.finish is not None:
            self.counters.finished(job.finish, job)
            slot.leave()
        else:
            slot.todo = job.tokens[-1:]

    def _fail(self, slot: Slot, error: Exception) -> None:
        if slot.job is None:
            return
        self.counters.finished("failed")
        slot.job.fail(error)
        slot.leave()
        slot.truncate(0)
