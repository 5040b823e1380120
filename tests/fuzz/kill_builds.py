"""Kill builds at random moments, resume them until they end, and compare what they write with a build left alone.

    python tests/fuzz/kill_builds.py --kills 100 [--seed 1] [--executor threads | processes:2]   the build itself
    python tests/fuzz/kill_builds.py --kills 100 --executor dask                  workers of a cluster on this machine

Exit status 1, and a line, when an output is there before its build ended, differs by a byte, or leaves files behind.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the command line; pytest has it there already

import numpy as np
from seeddelta import Recipe, build
from seeddelta.errors import ExecutorError
from tiny_models import SHAPES, tiny_weights, write_model

OPTIONS: dict[str, Any] = {"bits": 3, "scheme": "coo", "K": 2, "targets": "all", "effort": "fast", "threads": 1}
_PATIENCE = 120.0  # seconds for a build that nobody kills


@dataclass
class Killed:
    """`builds` ended, `kills` met something that was running, `wrong` is what should not be."""

    builds: int = 0
    kills: int = 0
    failures: int = 0
    wrong: list[str] = field(default_factory=list)


def write_dense(folder: Path, scale: int) -> Path:
    """A model of `scale` times the sizes of tiny_models."""
    rng = np.random.default_rng(5)
    weights = tiny_weights()
    for name in weights:
        if name.split(".")[2:3] and name.split(".")[2] in SHAPES:
            rows, columns = weights[name].shape
            weights[name] = rng.normal(0, 0.05, (scale * rows, scale * columns)).astype(np.float32)
    return write_model(folder / "dense.gguf", weights)


def run_build(dense: Path, output: Path, executor: str) -> None:
    build(Recipe(input=dense, output=output, executor=executor, **OPTIONS), progress=False)


def check(output: Path, expected: bytes, ended: bool, killed: Killed) -> None:
    """What may be in the folder of a build."""
    if not output.exists():
        if ended:
            killed.wrong.append("a build ended without an output")
    elif output.read_bytes() != expected:
        killed.wrong.append(f"after {killed.kills} kills an output differs")
    if ended and (left := sorted(p.name for p in output.parent.iterdir() if p != output)):
        killed.wrong.append(f"a build left {left} behind")


def kill_builds(folder: Path, kills: int, rng: Random, executor: str = "threads") -> Killed:
    """Kill whole builds, with the processes that they started."""
    dense, killed = write_dense(folder, 1), Killed()
    output = folder / "built" / "out.gguf"
    output.parent.mkdir()
    whole = _in_child(dense, output, executor, None)
    assert whole is not None, "the build that nobody kills ended by itself"
    expected = output.read_bytes()
    output.unlink()
    while killed.kills < kills and not killed.wrong:
        took = _in_child(dense, output, executor, rng.uniform(0, 1.1 * whole) if rng.random() < 0.8 else None)
        if took is None:
            killed.kills += 1
        else:
            killed.builds += 1
        check(output, expected, took is not None, killed)
        if took is not None:
            output.unlink(missing_ok=True)
    if _in_child(dense, output, executor, None) is None:
        killed.wrong.append("the last build did not end")
    killed.builds += 1
    check(output, expected, True, killed)
    return killed


def _in_child(dense: Path, output: Path, executor: str, after: float | None) -> float | None:
    """Seconds that a build took; None when it was killed `after` so many."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            run_build(dense, output, executor)
            status = 0
        finally:
            os._exit(status)
    with suppress(OSError):  # on both sides: the group must be there before it is killed
        os.setpgid(child, child)
    deadline = begin + (_PATIENCE if after is None else after)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if ended:
            if status != 0:
                raise RuntimeError(f"a build ended with status {status}")
            return now - begin
        if now >= deadline:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            return now - begin if status == 0 else None
        time.sleep(min(0.002, max(0.0, deadline - now)))


class Workers:
    """Two workers of one thread, forked from a process that has all modules already: starting one takes no second."""

    def __init__(self, folder: Path) -> None:
        self._here, there = multiprocessing.Pipe()
        self._folder = folder
        self.pids: list[int] = []
        if os.fork() == 0:
            try:
                self._here.close()
                self._fork_workers(there)
            finally:
                os._exit(0)
        there.close()

    def _fork_workers(self, requests: Connection) -> None:
        import distributed  # noqa: F401

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                address = requests.recv()
            except EOFError:
                return
            child = os.fork()
            if child == 0:
                try:
                    requests.close()
                    asyncio.run(self._work(address))
                finally:
                    os._exit(1)
            requests.send(child)

    async def _work(self, address: str) -> None:
        from distributed import Worker

        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        options: dict[str, Any] = {"nthreads": 1, "host": "127.0.0.1", "dashboard": False, "memory_limit": 0}
        async with Worker(address, local_directory=str(self._folder), **options) as worker:
            await worker.finished()

    def start(self, address: str) -> None:
        while len(self.pids) < 2:
            self._here.send(address)
            self.pids.append(self._here.recv())

    def kill(self, rng: Random) -> None:
        os.kill(self.pids.pop(rng.randrange(len(self.pids))), signal.SIGKILL)

    def close(self) -> None:
        self._here.close()
        while self.pids:
            os.kill(self.pids.pop(), signal.SIGKILL)


def kill_workers(folder: Path, kills: int, rng: Random) -> Killed:
    """Kill one worker after the other of a cluster that builds again and again."""
    dense, killed, stop = write_dense(folder, 3), Killed(), threading.Event()
    output = folder / "built" / "out.gguf"
    output.parent.mkdir()
    run_build(dense, output, "threads")
    expected = output.read_bytes()
    output.unlink()
    workers = Workers(folder)
    import distributed

    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None, silence_logs=50) as found:
        address = found.scheduler_address
        executor = address.replace("tcp://", "dask://")
        workers.start(address)

        def killer() -> None:
            while not stop.wait(rng.uniform(0, 1.5)):
                if output.with_name(output.name + ".parts").exists():  # while there is a build
                    workers.kill(rng)
                    killed.kills += 1
                workers.start(address)

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            while killed.kills < kills and not killed.wrong:
                try:
                    run_build(dense, output, executor)
                except ExecutorError:  # three workers died on one tensor: what is done is kept
                    killed.failures += 1
                    check(output, expected, False, killed)
                    continue
                killed.builds += 1
                check(output, expected, True, killed)
                output.unlink(missing_ok=True)
        except BaseException:
            workers.close()
            raise
        finally:
            stop.set()
            thread.join()
        workers.start(address)
        run_build(dense, output, executor)
        workers.close()
    killed.builds += 1
    check(output, expected, True, killed)
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the moments, which depend on the machine, too")
    parser.add_argument("--executor", default="threads")
    options = parser.parse_args()
    rng, begin = Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="seeddelta-kill-") as temporary:
        if options.executor == "dask":
            killed = kill_workers(Path(temporary), options.kills, rng)
        else:
            killed = kill_builds(Path(temporary), options.kills, rng, options.executor)
    for line in killed.wrong:
        print(line)
    print(f"{options.executor}: {killed.kills} kills, {killed.builds} builds ended, {killed.failures} gave up")
    print(f"{len(killed.wrong)} wrong, {time.monotonic() - begin:.0f} s")
    return 1 if killed.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
