"""`seeddelta imatrix --hessian` block by block: the files of the whole model's capture, and a stopped one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
from architectures import write_architecture
from seeddelta.calibrate import capture, engine, open_covariance, streamed, write_covariance
from seeddelta.cli.main import main
from seeddelta.errors import ImatrixError
from seeddelta.gguf.imatrix import read_imatrix, write_imatrix
from seeddelta.gguf.model_file import read_header

pytest.importorskip("llama_cpp")
CTX, CHUNKS = 64, 5


@pytest.fixture(autouse=True)
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # what the command would set stays in this test
    monkeypatch.setattr(engine, "RANGE", 2)


def run(model: Path, text: Path, folder: Path, *more: Any) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    paths = folder / "imatrix.gguf", folder / "cov.gguf"
    options = ["-m", model, "-f", text, "-o", paths[0], "--hessian", paths[1], "-c", CTX, "-t", 2, *more]
    if (code := main([str(part) for part in ["imatrix", *options]])) != 0:
        raise SystemExit(code)
    return paths


def assert_same_files(model: Path, text: Path, paths: tuple[Path, Path], folder: Path, **options: Any) -> None:
    """As those of a capture of the whole model."""
    captured = capture(model, text, ctx=CTX, threads=2, progress=False, **options)
    write_covariance(folder / "whole.gguf", captured)
    write_imatrix(folder / "whole-imatrix.gguf", captured.imatrix())
    whole, ours = open_covariance(folder / "whole.gguf"), open_covariance(paths[1])
    one, other = (dict(read_header(path).metadata.items()) for path in (folder / "whole.gguf", paths[1]))
    assert {key: str(value) for key, value in one.items()} == {key: str(value) for key, value in other.items()}
    assert list(read_header(folder / "whole.gguf").tensors) == list(read_header(paths[1]).tensors)
    for name in whole.tensors:
        expected = whole.matrix(name)
        assert np.linalg.norm(ours.matrix(name) - expected) < 1e-5 * np.linalg.norm(expected), name
        np.testing.assert_allclose(ours.importance(name), whole.importance(name), rtol=1e-5)
    wanted, found = (read_imatrix(path).entries for path in (folder / "whole-imatrix.gguf", paths[0]))
    assert list(wanted) == list(found)
    for name, entry in wanted.items():
        np.testing.assert_array_equal(found[name].counts, entry.counts)
        np.testing.assert_allclose(found[name].sums, entry.sums, rtol=1e-4, atol=1e-5 * entry.sums.max())


@pytest.mark.parametrize("options", [{"layers": "0"}, {"chunks": CHUNKS}], ids=str)
def test_files_are_those_of_the_whole_model(
    tiny_dense: Path, tiny_text: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
    paths = run(tiny_dense, tiny_text, tmp_path / "out", *arguments)
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["cov.gguf", "imatrix.gguf"]
    assert_same_files(tiny_dense, tiny_text, paths, tmp_path, **options)


def test_experts(smollm2_quantized: Path, tiny_text: Path, tmp_path: Path) -> None:
    model = write_architecture(tmp_path / "model.gguf", smollm2_quantized, "qwen3moe")
    paths = run(model, tiny_text, tmp_path / "out", "--chunks", CHUNKS)
    assert_same_files(model, tiny_text, paths, tmp_path, chunks=CHUNKS)


def test_blocks_that_do_not_run_by_themselves(smollm2_quantized: Path, tiny_text: Path, tmp_path: Path) -> None:
    model = tiny_llama.write_gemma2(tmp_path / "gemma2.gguf", smollm2_quantized)
    paths = run(model, tiny_text, tmp_path / "out", "--chunks", CHUNKS)
    captured = capture(model, tiny_text, ctx=CTX, threads=2, progress=False, chunks=CHUNKS)
    write_covariance(tmp_path / "whole.gguf", captured)
    assert paths[1].read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_stopped_one_goes_on(
    tiny_dense: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--chunks", CHUNKS]
    expected = [path.read_bytes() for path in run(tiny_dense, tiny_text, tmp_path / "whole", *more)]
    jobs, original = [], streamed.run_pass

    def stops(job: Any) -> Any:
        jobs.append((job.group.first, job.number))
        if jobs[-1] == (1, 1):
            raise ImatrixError("stop")
        return original(job)

    monkeypatch.setattr(streamed, "run_pass", stops)
    with pytest.raises(SystemExit):
        run(tiny_dense, tiny_text, tmp_path / "out", *more)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["imatrix.gguf.parts"]

    def counts(job: Any) -> Any:
        jobs.append((job.group.first, job.number))
        return original(job)

    monkeypatch.setattr(streamed, "run_pass", counts)
    jobs.clear()
    assert [path.read_bytes() for path in run(tiny_dense, tiny_text, tmp_path / "out", *more)] == expected
    assert jobs == [(1, number) for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cov.gguf", "imatrix.gguf"]


def test_what_was_measured_on_something_else_is_not_used(
    tiny_dense: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [path.read_bytes() for path in run(tiny_dense, tiny_text, tmp_path / "whole", "--chunks", 3)]
    monkeypatch.setattr("seeddelta.calibrate.write_covariance", lambda *_: (_ for _ in ()).throw(ImatrixError("stop")))
    with pytest.raises(SystemExit):
        run(tiny_dense, tiny_text, tmp_path / "out", "--chunks", CHUNKS)
    monkeypatch.undo()
    monkeypatch.setattr(engine, "RANGE", 2)
    assert [path.read_bytes() for path in run(tiny_dense, tiny_text, tmp_path / "out", "--chunks", 3)] == expected
