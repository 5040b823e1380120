"""Allocations of the preloaded library that fail: a line and an error code, and the next try works."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta

pytest.importorskip("llama_cpp")

from native_helpers import BATCHES, python_logits, tell
from seeddelta.runtime import RuntimeConfig
from tiny_llama import write_experts, write_llama

SOURCE = Path(__file__).parent / "faults" / "native.cpp"


@pytest.fixture(scope="module")
def faults(model_dir: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    path = model_dir / "native-faults.so"
    subprocess.run([compiler, "-O1", "-std=c++17", "-shared", "-fPIC", SOURCE, "-ldl", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def model(smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_experts(model_dir / "native-allocations.gguf", smollm2_quantized, "qwen2moe")
    recipe = seeddelta.Recipe(input=dense, output=model_dir / "native-allocations.seeddelta.gguf", targets="full")
    seeddelta.build(recipe, progress=False)
    return Path(recipe.output)


def jobs(model: Path, number: int) -> list[dict[str, Any]]:
    load = {"load": "m", "path": model, "n_ctx": 64, "n_batch": 32}
    return [{"fail": number}, load, {"eval": "m", "tokens": BATCHES}, {"close": "m"}]


@pytest.fixture(scope="module")
def ordinary(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "native-allocations-ordinary.gguf", smollm2_quantized)


def count(model: Path, faults: Path, folder: Path) -> int:
    told = tell([*jobs(model, 0), {"fail": 0}], folder, faults, set="attention=exact")
    assert told.code == 0, told.stderr[-2000:]
    return int(told.results[-1])


def check(model: Path, faults: Path, folder: Path, numbers: range) -> int:
    """In one process: what a failed try leaves behind does not harm the next one. How many tries failed."""
    every = [job for number in numbers for job in jobs(model, number)]
    told = tell(every, folder, faults, set="attention=exact")
    assert told.code == 0, told.stderr[-3000:]
    expected = python_logits(model, config=RuntimeConfig(attention="exact"))
    failed = 0
    for at in range(0, len(told.results), 4):
        loaded, path = told.results[at + 1 : at + 3]
        lines = [line for line in told.lines_of(at + 1) + told.lines_of(at + 2) if "seeddelta: " in line]
        if loaded and path:
            np.testing.assert_array_equal(np.load(path), expected)
        else:
            failed += 1
            assert len(lines) == 1, (numbers[at // 4], lines)
            assert "no memory" in lines[0] or "bad_alloc" in lines[0], lines
    return failed


def test_some_allocations_fail(model: Path, faults: Path, tmp_path: Path) -> None:
    total = count(model, faults, tmp_path)
    assert total > 500
    numbers = range(1, total, total // 40)
    assert check(model, faults, tmp_path, numbers) > len(numbers) / 2  # the first load makes most, once a process


def test_allocations_for_an_ordinary_model_fail(ordinary: Path, faults: Path, tmp_path: Path) -> None:
    """Those of its attention alone. Each in a process of its own, since most are made once a process."""
    total = count(ordinary, faults, tmp_path)
    assert total > 100
    numbers = range(1, total, total // 10)
    failed = sum(check(ordinary, faults, tmp_path, range(number, number + 1)) for number in numbers)
    assert failed > len(numbers) / 2


@pytest.mark.slow
def test_many_allocations_fail(model: Path, faults: Path, tmp_path: Path) -> None:
    total = count(model, faults, tmp_path)
    numbers = range(1, total, max(1, total // 600))
    assert check(model, faults, tmp_path, numbers) > 200  # the first load makes three times as many as a later one
