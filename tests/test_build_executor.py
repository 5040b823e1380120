"""Where tensors are encoded, what happens when workers die, and how a killed build goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta import Recipe
from seeddelta.convert import executors, jobs, pipeline
from seeddelta.convert.executors import map_in_order, open_pool
from seeddelta.convert.parts import open_parts
from seeddelta.convert.recipe import parse_executor
from seeddelta.convert.report import BuildReport
from seeddelta.errors import ExecutorError, OutputError, RecipeError, SourceModelError
from seeddelta.storage.checkpoint import Store
from tiny_models import TARGET_NAMES, tiny_weights, write_model


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_model(tmp_path / "dense.gguf")


def build(dense: Path, own: Executor | None = None, **options: Any) -> BuildReport:
    options = {"output": dense.parent / "out.gguf", "targets": "all", "effort": "fast"} | options
    return seeddelta.build(Recipe(input=dense, **options), executor=own, progress=False)  # type: ignore[operator]


def built(dense: Path, own: Executor | None = None, **options: Any) -> bytes:
    output = dense.parent / "built.gguf"
    build(dense, own, output=output, **options)
    data = output.read_bytes()
    output.unlink()
    return data


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("threads", ("threads", None, None)),
        ("processes:4", ("processes", 4, None)),
        ("dask://10.0.0.1:8786", ("dask", None, "10.0.0.1:8786")),
    ],
)
def test_names_of_executors(text: str, parsed: tuple[Any, ...]) -> None:
    assert parse_executor(text) == parsed
    assert Recipe(input="a", output="b", executor=text).executor == text


@pytest.mark.parametrize("text", ["", "thread", "processes:0", "processes:x", "dask://host", "tcp://host:1"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="processes:N or dask://host:port"):
        Recipe(input="a", output="b", executor=text)


def test_every_executor_gives_the_same_bytes(dense: Path) -> None:
    options: dict[str, Any] = {"bits": 4, "scheme": "coo", "K": 2}
    expected = built(dense, **options)
    assert built(dense, executor="threads:3", **options) == expected
    assert built(dense, executor="processes:2", **options) == expected
    with ThreadPoolExecutor(4) as own:
        assert built(dense, own, **options) == expected
        assert own.submit(int, "3").result() == 3  # it stays open


class Reversed(Executor):
    """Runs all jobs when the first result is asked for, the last one first; counts how many wait."""

    _max_workers = 2

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.gate = threading.Condition()
        self.waiting: list[int] = []
        self.most = self.submitted = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        number, self.submitted = self.submitted, self.submitted + 1
        with self.gate:
            self.waiting.append(number)
            self.most = max(self.most, len(self.waiting))

        def run() -> Any:
            result = fn(*args, **kwargs)
            with self.gate:  # those after it, as far as they are here, must be done
                self.gate.wait_for(lambda: max(self.waiting) == number, timeout=0.05)
                self.waiting.remove(number)
                self.gate.notify_all()
            return result

        return self.pool.submit(run)


def test_results_come_in_order_and_few_jobs_wait(dense: Path) -> None:
    expected, backwards = built(dense), Reversed()
    assert built(dense, backwards) == expected
    assert backwards.submitted == len(TARGET_NAMES)
    assert backwards.most <= 4  # two for each that runs
    backwards.pool.shutdown()


def test_errors_of_jobs_come_back_from_processes(tmp_path: Path) -> None:
    weights = tiny_weights()
    weights[TARGET_NAMES[0]][1, 2] = np.nan
    with pytest.raises(SourceModelError, match=f"'{TARGET_NAMES[0]}' has nan at row 1, column 2"):
        build(write_model(tmp_path / "dense.gguf", weights), executor="processes:1")


def die_on(folder: str, name: str, deaths: int, job: jobs.Job) -> jobs.JobResult:
    """Kill the worker the first times it meets a tensor."""
    if job.name == name:
        for turn in range(deaths):
            try:
                (Path(folder) / f"death{turn}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
    return jobs.run_job(job)


@pytest.mark.parametrize("deaths", [2, 9])
def test_death_of_a_worker(dense: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    """Two are survived; then the error names the tensor, which was not the first one under way."""
    from functools import partial

    expected, name = built(dense), TARGET_NAMES[2]
    monkeypatch.setattr(pipeline, "run_job", partial(die_on, str(dense.parent), name, deaths))
    if deaths < executors.ATTEMPTS:
        assert built(dense, executor="processes:2") == expected
        return
    with pytest.raises(ExecutorError, match=rf"tensor '{name}': 3 workers died"):
        build(dense, executor="processes:2")
    monkeypatch.undo()
    assert build(dense).tensors_restored >= 2  # those before it are not lost
    assert (dense.parent / "out.gguf").read_bytes() == expected


def test_a_broken_executor_of_the_caller(dense: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os._exit, 1).exception()
        with pytest.raises(ExecutorError, match=f"tensor '{TARGET_NAMES[0]}'"):
            build(dense, pool)


def test_a_worker_that_sees_another_model(dense: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    recipe = Recipe(input=dense, output=tmp_path / "out.gguf")
    job = jobs.Job(TARGET_NAMES[0], (96, 64), "F16", "0" * 64, recipe)
    with open_pool("threads", 1) as pool:
        with pytest.raises(SourceModelError, match=rf"'{TARGET_NAMES[0]}' on .* is not the one the build began with"):
            list(map_in_order(pool, jobs.run_job, [job]))
        with pytest.raises(ExecutorError, match=r"has seeddelta .* install the same"):
            list(map_in_order(pool, jobs.run_job, [replace(job, version="0.0")]))
        elsewhere = recipe.model_copy(update={"input": tmp_path / "no.gguf"})
        with pytest.raises(SourceModelError, match=r"no\.gguf: no such file on"):
            list(map_in_order(pool, jobs.run_job, [replace(job, recipe=elsewhere)]))


def test_progress_counts_every_tensor_once(dense: Path, capfd: pytest.CaptureFixture[str]) -> None:
    total = sum(np.prod(tensor.shape) for name, tensor in tiny_weights().items() if name in TARGET_NAMES)
    seen: list[str] = []
    with open_pool("threads:3", 0) as pool:
        from seeddelta.convert.pipeline import job_of
        from seeddelta.convert.plan import make_plan

        recipe = Recipe(input=dense, output=dense.parent / "out.gguf", targets="all")
        plan = make_plan(recipe)
        wanted = (job_of(recipe, plan, name, 1) for name in plan.targets)
        done = map_in_order(pool, jobs.run_job, wanted, lambda job: seen.append(job.name))
        assert [job.name for job, _ in done] == list(plan.targets)
    assert sorted(seen) == sorted(plan.targets)
    seeddelta.build(recipe)  # type: ignore[operator]
    bar = capfd.readouterr().err
    assert "100%" in bar
    assert f"{total / 1000:.1f}k/{total / 1000:.1f}k" in bar


KILLED = """
import os, signal, sys
from seeddelta import Recipe, build
from seeddelta.storage.checkpoint import Store
real, left = Store.save, [int(sys.argv[3])]
def save(*arguments):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return real(*arguments)
Store.save = save
if __name__ == "__main__":
    recipe = Recipe(
        input=sys.argv[1], output=sys.argv[2], bits=4, effort="fast", executor=sys.argv[4], targets="all"
    )
    build(recipe, progress=False)
"""


def encoded_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that are encoded from now on."""
    real, names = jobs.encode_tensor, []

    def encode(name: str, *arguments: Any) -> Any:
        names.append(name)
        return real(name, *arguments)

    monkeypatch.setattr(jobs, "encode_tensor", encode)
    return names


@pytest.mark.parametrize(("executor", "finished"), [("threads", 5), ("processes:2", 3)])
def test_killed_build_goes_on(
    dense: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], executor: str, finished: int
) -> None:
    expected, output = built(dense, bits=4), dense.parent / "out.gguf"
    script = dense.parent / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(dense), str(output), str(finished), executor]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert not output.exists()
    names = encoded_names(monkeypatch)
    recipe = Recipe(input=dense, output=output, bits=4, effort="fast", targets="all")
    report = seeddelta.build(recipe)  # type: ignore[operator]
    assert report.tensors_restored == finished
    assert names == [row.name for row in report.tensors][finished:]
    assert output.read_bytes() == expected
    assert f"{finished} of {len(TARGET_NAMES)} tensors are taken from" in capfd.readouterr().err
    assert sorted(os.listdir(dense.parent)) == ["dense.gguf", "killed.py", "out.gguf"]


def interrupted(dense: Path, monkeypatch: pytest.MonkeyPatch, finished: int, **options: Any) -> Path:
    """Folder of the parts of a build that was stopped."""
    real, calls = Store.save, []

    def save(*arguments: Any) -> Any:
        if len(calls) == finished:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", save)
        with pytest.raises(KeyboardInterrupt):
            build(dense, **options)
    return Path(options.get("checkpoint", dense.parent / "out.gguf.parts"))


def test_only_what_still_fits_is_used(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = built(dense, bits=4)
    for damage in ("cut", "flip", "empty", "options", "model", "code", "no-resume"):
        folder = interrupted(dense, monkeypatch, 6, bits=4)
        parts = sorted(folder.glob("blk*.sdpart"))
        assert len(parts) == 6
        (folder / f".{parts[0].name}.abc.part").write_bytes(b"unfinished")
        data, restored, options = bytearray(parts[2].read_bytes()), 5, {}
        if damage == "cut":
            parts[2].write_bytes(data[:-1])
        elif damage == "flip":
            data[-40] ^= 4
            parts[2].write_bytes(data)
        elif damage == "empty":
            parts[2].write_bytes(b"")
        elif damage == "options":
            restored, options = (
                6 - len([part for part in parts if "ffn_up" in part.name]),
                {"tensor_type": ["ffn_up=2"]},
            )
        elif damage == "model":
            other = tiny_weights()
            other[parts[0].name.removesuffix(".sdpart")][0, 0] += 1
            write_model(dense, other)
        elif damage == "code":
            monkeypatch.setattr("seeddelta.convert.pipeline.encoder_identity", lambda: "other")
            restored = 0
        else:
            restored, options = 0, {"resume": False}
        names = encoded_names(monkeypatch)
        report = build(dense, bits=4, **options)
        assert report.tensors_restored == restored, damage
        assert len(names) == len(TARGET_NAMES) - restored, damage
        if damage in ("cut", "flip", "empty", "code", "no-resume"):
            assert (dense.parent / "out.gguf").read_bytes() == expected, damage
        monkeypatch.undo()
        write_model(dense)
        assert not folder.exists()
        (dense.parent / "out.gguf").unlink()


def test_folder_of_the_caller(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = dense.parent / "a" / "b"
    assert interrupted(dense, monkeypatch, 2, checkpoint=mine) == mine
    (mine / "notes.part").write_text("not ours")
    (dense.parent / "copy").mkdir()
    moved = dense.rename(dense.parent / "copy" / dense.name)  # paths do not matter
    assert build(moved, checkpoint=mine, output=moved.parent / "other.gguf").tensors_restored == 2
    assert os.listdir(mine) == ["notes.part"]
    with pytest.raises(RecipeError, match="exclude each other"):
        build(moved, checkpoint=mine, no_checkpoint=True)


def test_one_build_at_a_time(dense: Path) -> None:
    output = dense.parent / "out.gguf"
    with open_parts(output, dense.parent / "out.gguf.parts"), pytest.raises(OutputError, match="another build of out"):
        build(dense)
    build(dense)
    assert sorted(os.listdir(dense.parent)) == ["dense.gguf", "out.gguf"]


def test_command_line(dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from seeddelta.cli.main import main

    output = dense.parent / "out.gguf"
    arguments = [
        "build",
        "-i",
        str(dense),
        "-o",
        str(output),
        "--preset",
        "small",
        "--targets",
        "all",
        "--tensor-type",
        "ffn=2",
        "--set",
        "effort=fast",
    ]
    arguments += ["--tensor-type", r"blk\.1\.ffn_up=dense"]
    interrupted(dense, monkeypatch, 4, preset="small", tensor_type=("ffn=2", r"blk\.1\.ffn_up=dense"))
    names = encoded_names(monkeypatch)
    assert main([*arguments, "-q", "--executor", "threads:2"]) == 0
    assert len(names) == len(TARGET_NAMES) - 5
    first = output.read_bytes()
    interrupted(dense, monkeypatch, 4, preset="small", tensor_type=("ffn=2", r"blk\.1\.ffn_up=dense"))
    names.clear()
    assert main([*arguments, "-q", "--no-resume"]) == 0
    assert len(names) == len(TARGET_NAMES) - 1
    assert output.read_bytes() == first
    assert main([*arguments, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "of the original's" in text
    assert "bits per converted weight" in text
    assert main([*arguments, "--executor", "cloud"]) == 1
    assert "dask://host:port" in capsys.readouterr().err


PRESET_BITS = {"tiny": 2.4, "small": 3.4, "balanced": 4.4, "large": 5.1}


@pytest.mark.parametrize("preset", PRESET_BITS)
def test_bits_of_the_presets(smollm2_quantized: Path, tmp_path: Path, preset: str) -> None:
    report = build(smollm2_quantized, output=tmp_path / "out.gguf", preset=preset, dry_run=True)
    assert PRESET_BITS[preset] - 0.01 < report.bits_per_weight <= PRESET_BITS[preset]
    bits = {row.name: round(2 * row.bits_per_weight - 0.2) / 2 for row in report.tensors}  # without scales
    for layer in range(1, 29):
        here = {name.split(".")[2]: rate for name, rate in bits.items() if name.startswith(f"blk.{layer}.")}
        assert here["attn_v"] >= here["attn_q"] + 0.5
        assert here["attn_v"] >= here["attn_k"] >= here["ffn_down"] >= here["ffn_up"] >= here["ffn_gate"]
    for layer in (0, 29):
        assert all(
            bits[f"blk.{layer}.{kind}.weight"] > bits["blk.7.ffn_gate.weight"] for kind in ("ffn_up", "ffn_down")
        )
    everything = build(
        smollm2_quantized, output=tmp_path / "o.gguf", preset=preset, tensor_type=["blk=4"], dry_run=True
    )
    assert {round(row.bits_per_weight) for row in everything.tensors} == {4}


def test_dask_cluster_gives_the_same_bytes(smollm2_quantized: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    local = tmp_path / "local.gguf"
    build(smollm2_quantized, output=local, layers="0-0")
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1"}
    with distributed.LocalCluster(**options, dashboard_address=None, silence_logs=50) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        far = tmp_path / "far.gguf"
        report = build(smollm2_quantized, output=far, layers="0-0", executor=f"dask://{address}")
        assert far.read_bytes() == local.read_bytes()
        assert len(report.tensors) == 7


def test_dask_that_is_not_there(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "_CONNECT_SECONDS", 1)
    with pytest.raises(ExecutorError, match=r"dask://127\.0\.0\.1:9: has no scheduler"):
        build(dense, executor="dask://127.0.0.1:9")
    assert os.listdir(dense.parent) == ["dense.gguf"]
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(seeddelta.errors.MissingDependencyError, match=r"pip install 'seeddelta\[dask\]'"):
        build(dense, executor="dask://127.0.0.1:9")
