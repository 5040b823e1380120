"""Where jobs run: threads here, processes here, a Dask cluster, or any executor of the caller.

Results come in the order of the jobs, whatever finishes first, and only a few are under way or waiting at a time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ..children import safe_children
from ..errors import ExecutorError, needs_extra
from ..processors import processors
from .recipe import parse_executor

ATTEMPTS = 3  # a job whose worker dies this often is given up
_CONNECT_SECONDS = 15
_CHECK_SECONDS = 2
_ALONE_SECONDS = 300  # a cluster without workers is waited for so long: they may be on their way


class Labeled(Protocol):
    """A job: `label` tells it in messages."""

    @property
    def label(self) -> str: ...


Job = TypeVar("Job", bound=Labeled)
Result = TypeVar("Result")


class Pool:
    """An executor with `jobs` jobs at a time, each with `threads` threads (0: all cores)."""

    def __init__(
        self,
        make: Callable[[], Executor],
        jobs: int,
        threads: int,
        *,
        own: bool = True,
        here: bool = True,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.check = check  # raises ExecutorError when no result can come any more
        self.jobs = jobs
        self.threads = threads
        self.jobs_here = jobs if here else 1  # that share the memory of a machine
        self._make = make
        self._own = own
        self._executor = make()

    def submit(self, run: Callable[[Job], Result], job: Job) -> Future[Result]:
        return self._executor.submit(run, job)

    def renew(self) -> None:
        """Put a new executor in the place of one that broke."""
        if self._own:
            self.close(kill=True)
            self._executor = self._make()

    def close(self, *, kill: bool = False) -> None:
        """Stop. With `kill`, do not wait for jobs in other processes; threads always finish the job they are at."""
        if not self._own:
            return
        if kill:  # a job takes minutes, and its result is not wanted
            for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                process.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def open_pool(text: str, threads: int, given: Executor | None = None) -> Iterator[Pool]:
    """The pool that `--executor` and `--threads` ask for, or one around the caller's executor (which stays open).

    Raises ExecutorError when a cluster cannot be reached, MissingDependencyError without `distributed`.
    """
    if given is not None:
        jobs = int(getattr(given, "_max_workers", 0) or processors())
        yield Pool(lambda: given, jobs, _share(threads, jobs), own=False)
        return
    kind, jobs_asked, address = parse_executor(text)
    if kind == "dask":
        assert address is not None
        with _dask(address, threads) as pool:
            yield pool
        return
    if kind == "threads":
        jobs = jobs_asked or 1  # the encoder has threads of its own

        def make() -> Executor:
            return ThreadPoolExecutor(jobs, "seeddelta-build")
    else:
        jobs = jobs_asked or processors()

        def make() -> Executor:
            context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
            return ProcessPoolExecutor(jobs, context, initializer=_start_worker)

    with safe_children():
        pool = Pool(make, jobs, _share(threads, jobs))
        try:
            yield pool
        except BaseException:
            pool.close(kill=True)
            raise
        pool.close()


def map_in_order(
    pool: Pool, run: Callable[[Job], Result], jobs: Iterable[Job], finished: Callable[[Job], object] = lambda _: None
) -> Iterator[tuple[Job, Result]]:
    """Results of `run` for the jobs in their order; `finished` is called (in any thread, in any order) as soon as one
    is done.

    At most twice as many jobs as run at a time are under way or wait to be taken. When a worker dies, the first job
    that is not done runs alone, so that it is clear whose fault it is. Raises ExecutorError naming the job after
    ATTEMPTS deaths, and what the jobs raise.
    """
    source, window = iter(jobs), deque[_Task[Job, Result]]()
    while True:
        while len(window) < 2 * pool.jobs and (job := next(source, None)) is not None:
            window.append(_Task(job))
        if not window:
            return
        head = window[0]
        try:
            for task in [head] if head.deaths else window:
                task.start(pool, run, finished)
            assert head.future is not None
            while not wait([head.future], timeout=_CHECK_SECONDS).done:
                pool.check()
            result = head.future.result()
        except Exception as error:
            pool.check()
            if not _is_death(error):
                raise
            head.deaths += 1
            if head.deaths >= ATTEMPTS:
                raise ExecutorError(
                    f"{head.job.label}: {head.deaths} workers died on it ({type(error).__name__}: {error}); "
                    "most often memory ran out: use fewer jobs at a time (--executor processes:1) or --executor threads"
                ) from error
            pool.renew()
            for task in window:
                task.forget_death()
            continue
        window.popleft()
        yield head.job, result


@dataclass
class _Task(Generic[Job, Result]):
    job: Job
    future: Future[Result] | None = None
    deaths: int = 0

    def start(self, pool: Pool, run: Callable[[Job], Result], finished: Callable[[Job], object]) -> None:
        if self.future is not None:
            return
        job = self.job
        self.future = pool.submit(run, job)

        def tell(future: Future[Result]) -> None:
            if not future.cancelled() and future.exception() is None:
                finished(job)

        self.future.add_done_callback(tell)

    def forget_death(self) -> None:
        if self.future is None or not self.future.done():
            return
        if self.future.cancelled() or _is_death(self.future.exception()):
            self.future = None


def _is_death(error: BaseException | None) -> bool:
    """True when it was the worker that failed and not the job. Dask's classes are known by name: it may be absent."""
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    if isinstance(error, TypeError):  # a result came, and its worker died before distributed looked at its status
        return any(frame.name == "_cascade_future" for frame in traceback.extract_tb(error.__traceback__)[-1:])
    return any(kind.__name__ in ("KilledWorker", "CommClosedError", "CancelledError") for kind in type(error).__mro__)


def _share(threads: int, jobs: int) -> int:
    """Threads of one of `jobs` jobs that together have `threads` (0: all cores)."""
    return threads if jobs == 1 else max(1, (threads or processors()) // jobs)


def _start_worker() -> None:
    """In a worker process: leave Ctrl-C to the parent, and do not outlive it when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


@contextmanager
def _dask(address: str, threads: int) -> Iterator[Pool]:
    with needs_extra("dask"):
        from distributed import Client
    client: Any = None
    try:
        try:
            client = Client(f"tcp://{address}", timeout=_CONNECT_SECONDS, set_as_default=False)
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            what = "has no scheduler" if client is None else "has no workers"
            raise ExecutorError(f"dask://{address}: {what} that answers; start it, or check the address") from error
        slots = max(1, sum(client.ncores().values()))
        # a worker runs as many jobs as it has threads; not pure: a lost job must be run again, not looked up
        executor = client.get_executor(pure=False)

        seen = time.monotonic()

        def check() -> None:  # its futures wait for ever
            nonlocal seen
            if client.scheduler_info()["workers"]:
                seen = time.monotonic()
            elif time.monotonic() - seen > _ALONE_SECONDS:
                raise ExecutorError(
                    f"dask://{address}: has had no workers for {_ALONE_SECONDS} s; start some and build again, "
                    "finished tensors are kept"
                )
            if client.status == "closed":
                raise ExecutorError(
                    f"dask://{address}: the scheduler is gone; start it and build again, finished tensors are kept"
                )

        try:
            yield Pool(lambda: executor, slots, threads or 1, own=False, here=False, check=check)
        finally:
            if client.status != "closed":
                executor.shutdown(wait=False)
    finally:
        if client is not None:
            client.close()
