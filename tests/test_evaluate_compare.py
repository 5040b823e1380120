"""Models in processes of their own, what they report, and how they fail."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT
from seeddelta.errors import EvaluationError, FormatError, MissingFileError
from seeddelta.evaluate import client, worker
from seeddelta.evaluate.client import Worker
from seeddelta.evaluate.files import file_size
from seeddelta.evaluate.memory import Memory, read_memory
from seeddelta.evaluate.speed import collect, summary
from seeddelta.report.tables import comparison_table, short_names, spread


@pytest.fixture(scope="module")
def text_file(model_dir: Path) -> Path:
    path = model_dir / "evaluate.txt"
    path.write_text(TEXT * 8, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def comparison(short_quantized: Path, short_two_layers: Path, text_file: Path) -> Any:
    return seeddelta.evaluate(
        [short_quantized, short_two_layers],
        text=text_file,
        n_ctx=128,
        chunks=2,
        threads=[2, 1],  # the perplexity uses the last
        reps=2,
        n_prompt=32,
        n_gen=4,
        prompt="The capital of France is",
    )


@pytest.mark.slow
def test_comparison(comparison: Any, short_two_layers: Path) -> None:
    dense, small = comparison.models
    assert (dense.size.kind, dense.size.bits_per_weight) == ("Q4_1", 5.0)
    assert small.size.file_bytes == short_two_layers.stat().st_size
    assert dense.difference is None
    assert small.difference.log_ratio == pytest.approx(np.log(small.perplexity.ppl / dense.perplexity.ppl))
    assert all(name.startswith("attention.") for name in dense.metrics)
    assert small.metrics["seeddelta.weights"] == 14
    assert small.metrics["seeddelta.calls"] > 0
    for model in comparison.models:
        assert model.sample
        assert [speed.threads for speed in model.speed] == [2, 1]
        assert all(len(speed.prompt) == len(speed.generation) == 2 for speed in model.speed)


def test_json_has_all_of_it(comparison: Any) -> None:
    found = json.loads(json.dumps(comparison.to_dict()))
    assert set(found) == {"settings", "models"}
    assert found["settings"]["threads"] == [2, 1]
    model = found["models"][1]
    assert set(model) >= {
        "path", "kind", "file_bytes", "block_weights", "bits_per_weight", "weights", "model_bits_per_weight", "memory",
        "speed", "perplexity", "difference",
        "metrics", "sample",
    }  # fmt: skip
    assert set(model["perplexity"]) >= {"ppl", "stderr", "tokens_scored", "chunks", "n_ctx", "chunk_nll"}
    assert set(model["difference"]) >= {"log_ratio", "stderr", "percent", "percent_stderr"}
    assert set(model["memory"]) == {"before_load", "after_load", "after_generation"}
    assert set(model["memory"]["after_generation"]) == {"anon", "file", "shmem", "peak", "pss", "resident"}
    assert set(model["speed"][0]) == {"threads", "depth", "n_prompt", "n_gen", "prompt", "generation"}
    assert set(model["speed"][0]["generation"]) == {"median", "mad", "min", "max", "samples"}


def test_table_shows_every_measure(comparison: Any) -> None:
    from rich.console import Console

    console = Console(width=140, file=io.StringIO())
    console.print(comparison_table(comparison, title="a title"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    small = comparison.models[1]
    for part in ("a title", "perplexity", "change", "1 thread)", "2 threads)", "memory", "anon / file / shmem", "peak"):
        assert part in text
    assert f"{small.perplexity.ppl:.1e}" in text  # the first layers of a model know nothing
    assert f"{small.size.file_bytes / 1e6:.1f}" in text


def test_size_counts_converted_and_kept_matrices(short_f16: Path, short_two_layers: Path) -> None:
    dense, mixed = file_size(short_f16), file_size(short_two_layers)
    assert (dense.kind, dense.bits_per_weight) == ("F16", 16.0)
    assert mixed.block_weights == dense.block_weights
    with seeddelta.open_seeddelta(short_two_layers) as file:
        payload = sum(tensor.payload_bytes for tensor in file.tensors.values())
        weights = sum(tensor.description.shape[0] * tensor.description.shape[1] for tensor in file.tensors.values())
    expected = (8 * payload + 16 * (dense.block_weights - weights)) / dense.block_weights
    assert mixed.bits_per_weight == pytest.approx(expected)


@pytest.mark.slow
def test_without_speed_one_model_is_loaded_at_a_time(
    smollm2_quantized: Path, monkeypatch: pytest.MonkeyPatch, text_file: Path
) -> None:
    alive: list[int] = []

    class Counted(client.Worker):
        def __init__(self, *args: Any, **options: Any) -> None:
            alive.append(1)
            assert len(alive) == 1
            super().__init__(*args, **options)

        def close(self) -> None:
            alive.clear()
            super().close()

    monkeypatch.setattr("seeddelta.evaluate.compare.Worker", Counted)
    paths = [smollm2_quantized, smollm2_quantized]
    comparison = seeddelta.evaluate(paths, text=text_file, n_ctx=64, chunks=1, reps=0, threads=1)
    assert [model.speed for model in comparison.models] == [(), ()]
    assert comparison.models[1].difference is not None
    assert comparison.models[1].difference.log_ratio == pytest.approx(0, abs=1e-9)


def test_a_models_exception_comes_back(tmp_path: Path, smollm2_quantized: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    with pytest.raises(FormatError, match=r"broken\.gguf"):
        Worker(broken)
    with Worker(smollm2_quantized, n_ctx=64, n_batch=64, threads=1) as process:
        with pytest.raises(EvaluationError, match="do not fit the context of"):
            process.request("speed", n_prompt=4096, n_gen=0)
        with pytest.raises(EvaluationError, match="'nonsense' is not known"):
            process.request("nonsense")
        with pytest.raises(EvaluationError, match=r"Q4_1\.gguf: TypeError"):
            process.request("speed", color="blue")
        assert process.request("memory")["anon"] > 0  # it still answers


def test_a_dead_process_is_named(smollm2_quantized: Path) -> None:
    with Worker(smollm2_quantized, n_ctx=64, n_batch=64, threads=1) as process:
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(EvaluationError, match=r"Q4_1\.gguf.*SIGKILL during 'memory'.*out of memory"):
            process.request("memory")


def test_output_of_libraries_does_not_get_between_the_answers() -> None:
    requests = io.StringIO('{"command": "memory"}\n{"command": "_llm"}\nnot json\n{"command": "metrics"}\n')
    answers = io.StringIO()
    worker.serve(requests, answers)
    first, *errors = map(json.loads, answers.getvalue().splitlines())
    assert "anon" in first["result"]
    assert [answer["error"]["type"] for answer in errors] == ["EvaluationError", "JSONDecodeError", "EvaluationError"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"threads": 0}, "1 or more"), ({"text": "/no/such/file"}, "no such file"), ({"paths": []}, "no model")],
)
def test_wrong_arguments(smollm2_quantized: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((EvaluationError, MissingFileError), match=message):
        seeddelta.evaluate(options.pop("paths", [smollm2_quantized]), **options)


def test_a_short_text_is_refused_before_a_model_is_loaded(tmp_path: Path, smollm2_quantized: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("A few words.")
    with pytest.raises(EvaluationError, match=r"short\.txt: 12 bytes are fewer than the 1024 tokens that"):
        seeddelta.evaluate(str(smollm2_quantized), text=path)  # one path, no list
    with pytest.raises(MissingFileError, match="no such file"):
        seeddelta.bench(tmp_path / "none.gguf")


def test_memory_of_this_process() -> None:
    memory = read_memory()
    if memory.anon is None:
        pytest.skip("no /proc/self/status here")
    assert memory.resident is not None
    assert memory.peak is not None
    assert 0 < memory.resident <= memory.peak * 1.01
    assert Memory.from_dict(memory.to_dict()) == memory
    assert read_memory(2**31 - 1) == Memory()
    assert Memory().resident is None


def test_numbers_of_speed() -> None:
    found = summary((3.0, 1.0, 2.0, 9.0, 2.5))
    assert found == {"median": 2.5, "mad": 0.5, "min": 1.0, "max": 9.0, "samples": [3.0, 1.0, 2.0, 9.0, 2.5]}
    assert summary(()) is None
    assert collect([], threads=1, n_prompt=0, n_gen=0).to_dict()["prompt"] is None
    assert (spread(()), spread((2.0,)), spread((1.0, 3.0, 2.0))) == ("-", "2.0", "2.0 (1.0-3.0)")
    assert short_names([Path("a/m.gguf"), Path("b/m.gguf"), Path("b/n.gguf")]) == ["a/m.gguf", "b/m.gguf", "n.gguf"]
