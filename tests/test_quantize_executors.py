"""`seeddelta.quantize` in threads, processes and a cluster whose workers die: the same bytes everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import seeddelta
import tiny_llama
from architectures import write_architecture
from seeddelta.calibrate import engine as engines
from seeddelta.calibrate.engine import BlockEngine
from seeddelta.calibrate.groups import groups_of
from seeddelta.calibrate.passes import PassJob, pass_jobs, run_pass
from seeddelta.calibrate.sums import PassSums
from seeddelta.calibrate.text import Windows
from seeddelta.convert import jobs, quantize
from seeddelta.convert.executors import Pool
from seeddelta.errors import ExecutorError, ImatrixError, SourceModelError
from seeddelta.gguf.source import open_source

pytest.importorskip("llama_cpp")
OPTIONS: dict[str, Any] = {"ctx": 64, "chunks": 4, "bits": 4, "progress": False}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Jobs that were given to a pool; each has one chunk of the text."""
    monkeypatch.setattr(engines, "RANGE", 1)
    found, original = [], Pool.submit

    def submit(self: Pool, run: Any, job: Any) -> Future[Any]:
        found.append(job)
        return original(self, run, job)

    monkeypatch.setattr(Pool, "submit", submit)
    return found


@pytest.fixture(scope="module")
def expected(tiny_dense: Path, tiny_text: Path, model_dir: Path) -> bytes:
    """What threads make of ranges of one chunk."""
    path = model_dir / "out.seeddelta.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "RANGE", 1)
        seeddelta.quantize(tiny_dense, path, text=tiny_text, threads=1, **OPTIONS)
    return path.read_bytes()


@pytest.mark.parametrize("executor", ["threads:2", "processes:2", pytest.param("processes:1", marks=pytest.mark.slow)])
def test_bytes_do_not_depend_on_the_executor(
    tiny_dense: Path, tiny_text: Path, expected: bytes, tmp_path: Path, submitted: list[Any], executor: str
) -> None:
    path = tmp_path / "out.seeddelta.gguf"
    seeddelta.quantize(tiny_dense, path, text=tiny_text, executor=executor, **OPTIONS)
    assert path.read_bytes() == expected
    passes = [(job.group.first, job.number) for job in submitted if isinstance(job, PassJob)]
    assert sorted(passes) == [(block, number) for block in range(2) for number in range(4)]
    assert len(submitted) > len(passes)  # matrices
    assert list(tmp_path.iterdir()) == [path]


def test_experts(
    smollm2_quantized: Path, tiny_text: Path, tmp_path: Path, submitted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture block by block, one expert and the covariance of one input at a time: the same bytes."""
    model = write_architecture(tmp_path / "model.gguf", smollm2_quantized, "qwen3moe")
    shapes, real = [], jobs.encode_tensor

    def encode(name: str, weights: Any, *rest: Any) -> Any:
        shapes.append((name, weights.shape))
        return real(name, weights, *rest)

    monkeypatch.setattr(jobs, "encode_tensor", encode)
    paths = [tmp_path / name / "out.gguf" for name in ("one", "two")]
    for path, executor, limit in zip(paths, ("threads", "threads:2"), (1 << 30, 50_000), strict=True):
        path.parent.mkdir()
        monkeypatch.setattr(quantize, "sums_limit", lambda *_, limit=limit: limit)
        report = seeddelta.quantize(model, path, text=tiny_text, executor=executor, **OPTIONS)
        assert {row.method for row in report.tensors} == {"feedback"}
    assert paths[0].read_bytes() == paths[1].read_bytes()
    experts = [shape for name, shape in shapes if name == "blk.1.ffn_gate_exps.weight"]
    stored = seeddelta.open_seeddelta(paths[0]).tensors["blk.1.ffn_gate_exps.weight"].description
    assert experts == 2 * stored.experts * [stored.shape]
    passes = [job for job in submitted if isinstance(job, PassJob)]
    assert len(passes) >= 4 * 2 + 3 * 4 * 2  # of the second run every block more than once


@pytest.mark.slow
def test_workers_of_a_cluster_die(
    tiny_dense: Path,
    tiny_text: Path,
    expected: bytes,
    tmp_path: Path,
    submitted: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three times the worker that has just begun a job is killed; its nanny starts another one."""
    distributed = pytest.importorskip("distributed")
    path, original, random = tmp_path / "out.seeddelta.gguf", Pool.submit, Random(5)
    points, killed = {1, *random.sample(range(3, 16), 2)}, []  # the first jobs are text, those after them any
    options: dict[str, Any] = {"n_workers": 4, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1"}
    with distributed.LocalCluster(**options, dashboard_address=None, silence_logs=50) as cluster:

        def submit(self: Pool, run: Any, job: Any) -> Future[Any]:
            future = original(self, run, job)
            if len(submitted) in points:
                points.remove(len(submitted))
                for _ in range(200):
                    busy = [one.name for one in list(cluster.scheduler.workers.values()) if one.processing]
                    if busy:
                        pid = cluster.workers[busy[0]].pid
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        break
                    time.sleep(0.01)
            return future

        monkeypatch.setattr(Pool, "submit", submit)
        address = cluster.scheduler_address.removeprefix("tcp://")
        seeddelta.quantize(tiny_dense, path, text=tiny_text, executor=f"dask://{address}", **OPTIONS)
    assert len(set(killed)) == 3
    assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_sums_of_ranges_are_those_of_the_text(
    tiny_dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input of more columns than a panel of the file has rows, and rows that begin and end anywhere."""
    monkeypatch.setattr("seeddelta.calibrate.sums._PANEL", 40)
    monkeypatch.setattr(engines, "RANGE", 2)
    tokens = np.random.default_rng(0).integers(20, tiny_llama.N_VOCAB, (5, 32)).astype(np.int32)
    groups = groups_of(2, 1)
    engine = BlockEngine(open_source(tiny_dense), Windows(tokens, "", ""), groups, tmp_path)
    name = "blk.0.ffn_down.weight"
    with engine.run(groups[0], [name]) as run, PassSums(tmp_path) as sums:
        for job in pass_jobs(engine, groups[0], [name], keep=True, threads=1):
            record = run_pass(job)
            assert record is not None
            sums.add(record)
        assert sums.tokens(name) == run.tokens(name) == 160
        np.testing.assert_allclose(sums.norm_square(name), run.norm_square(name), rtol=1e-12)
        whole = sums.covariance(name)
        assert np.linalg.norm(whole - run.covariance(name)) < 1e-6 * np.linalg.norm(whole)
        np.testing.assert_array_equal(whole, whole.T)
        np.testing.assert_array_equal(sums.covariance_rows(name, 33, 95), whole[33:95])
    after = b"".join(states.path.read_bytes() for states in engine.range_states(1))
    assert after == engine.states_before(1).path.read_bytes()
    assert not list(tmp_path.glob("sums*"))


def test_a_worker_that_sees_something_else(tiny_dense: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    tokens = np.full((1, 32), 40, np.int32)
    engine = BlockEngine(open_source(tiny_dense), Windows(tokens, "", ""), groups_of(2, 1), tmp_path)
    (job,) = pass_jobs(engine, engine.groups[0], [], keep=False, threads=1)
    assert run_pass(job) is None
    with pytest.raises(SourceModelError, match="are not those the run began with"):
        run_pass(replace(job, sha256="0"))
    with pytest.raises(SourceModelError, match=r"no\.gguf: no such file on"):
        run_pass(replace(job, path=tmp_path / "no.gguf"))
    with pytest.raises(ImatrixError, match="workers need the folder"):
        run_pass(replace(job, folder=tmp_path / "no"))
    with pytest.raises(ExecutorError, match="install the same"):
        run_pass(replace(job, version="0.0"))


@pytest.mark.slow
def test_smollm2(smollm2_f16: Path, tmp_path: Path) -> None:
    """Some blocks of a real model: any memory (413M: each block twice), any number of workers, killed and resumed."""
    command = [sys.executable, "-m", "seeddelta", "quantize", str(smollm2_f16), "--bits", "4", "--layers", "0-1", "-q"]
    command += ["--quality", "fast"]
    command += ["--chunks", "14", "--ctx", "64", "-o"]
    runs: dict[str, list[str]] = {
        "one": ["--ram", "16G", "-t", "1"],
        "other": ["--ram", "1G", "-t", "2"],
        "least": ["--ram", "413M"],
        "four": ["--ram", "2G", "--executor", "processes:4"],
    }
    made = {}
    for name, options in runs.items():
        (tmp_path / name).mkdir()
        path = tmp_path / name / "out.gguf"
        if name == "other":  # killed once in every block
            for block in range(2):
                process = subprocess.Popen([*command, str(path), *options])
                part = path.with_name("out.gguf.parts") / f"blk.{block}.attn_k.weight.sdpart"
                while process.poll() is None and not part.exists():
                    time.sleep(0.01)
                process.kill()
                assert process.wait() == -signal.SIGKILL
        subprocess.run([*command, str(path), *options], check=True)
        made[name] = path.read_bytes()
        assert list(path.parent.iterdir()) == [path]
    assert set(made.values()) == {made["one"]}
