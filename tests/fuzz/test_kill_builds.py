"""A few kills of builds at random moments, and what becomes of the files that they leave."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from kill_builds import kill_builds, kill_workers, write_dense
from seeddelta import Recipe, build
from seeddelta.convert import executors
from seeddelta.errors import ExecutorError
from seeddelta.storage.output import atomic_output, hold

pytest.importorskip("fcntl")

LEAVES = """
import os, signal, sys
from seeddelta import Recipe, build
from seeddelta.convert import executors
from seeddelta.errors import ExecutorError
from seeddelta.storage import output
output._mode_of_new_file = lambda path: os.kill(os.getpid(), signal.SIGKILL) if path.suffix == ".gguf" else 0o600
build(Recipe(input=sys.argv[1], output=sys.argv[2], effort="fast", no_checkpoint=True), progress=False)
"""


def test_killed_builds_end_in_the_same_bytes(tmp_path: Path) -> None:
    killed = kill_builds(tmp_path, 2, Random(3))
    assert killed.wrong == []
    assert killed.kills == 2
    assert killed.builds >= 1


@pytest.mark.slow
def test_many_killed_builds(tmp_path: Path) -> None:
    killed = kill_builds(tmp_path, 30, Random(7))
    assert killed.wrong == []
    assert killed.kills == 30


def test_what_a_killed_build_leaves_goes_with_the_next(tmp_path: Path) -> None:
    dense, output = write_dense(tmp_path, 1), tmp_path / "built" / "out.gguf"
    output.parent.mkdir()
    command = [sys.executable, "-c", LEAVES, str(dense), str(output)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    left = sorted(path.suffix for path in output.parent.iterdir())
    assert left == [".part", ".parts"]
    build(Recipe(input=dense, output=output, effort="fast", no_checkpoint=True), progress=False)
    assert os.listdir(output.parent) == ["out.gguf"]


def test_what_another_process_writes_stays(tmp_path: Path) -> None:
    with atomic_output(tmp_path / "a") as first:
        first.write_text("first")
        with atomic_output(tmp_path / "a") as second:
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert hold(one.fileno())
        assert not hold(other.fileno())


def test_workers_of_a_cluster_die(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    killed = kill_workers(tmp_path, 1, Random(4))
    assert killed.wrong == []
    assert killed.kills >= 1
    assert killed.builds >= 1


def test_a_worker_that_dies_after_its_result_has_died() -> None:
    """What distributed raises then is unpacking: the result stands where an error should."""
    distributed = pytest.importorskip("distributed.cfexecutor")

    class Future:
        status, key = "lost", "k"

        async def _result(self, raiseit: bool) -> object:
            return object()

    theirs: concurrent.futures.Future[object] = concurrent.futures.Future()

    async def cascade() -> None:
        await distributed._cascade_future(Future(), theirs)

    asyncio.run(cascade())
    assert isinstance(theirs.exception(), TypeError)
    assert executors._is_death(theirs.exception())
    assert not executors._is_death(TypeError("a job's own"))


def until_it_raises(check: Callable[[], object]) -> None:
    for _ in range(300):
        check()
        time.sleep(0.2)


def test_a_cluster_without_workers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "_ALONE_SECONDS", 1)
    options = {
        "n_workers": 1,
        "processes": False,
        "protocol": "tcp://",
        "host": "127.0.0.1",
        "dashboard_address": None,
        "silence_logs": 50,
    }
    with distributed.LocalCluster(**options) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        with executors.open_pool(f"dask://{address}", 1) as pool:
            pool.check()
            cluster.scale(0)
            with pytest.raises(ExecutorError, match=r"no workers for 1 s; start some"):
                until_it_raises(pool.check)
