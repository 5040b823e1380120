"""Runs tests/native_child.py under the preloaded library and tells what it said."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.errors import NotAvailableError
from tiny_llama import write_llama

CHILD = Path(__file__).with_name("native_child.py")
PROMPT = list(range(5, 25))
BATCHES = [PROMPT, [30], [31], [32]]  # a prompt, and tokens one by one


def library() -> Path:
    """The library. Skips the test where there is none."""
    from seeddelta.cli.exec import find_library

    try:
        return find_library()
    except NotAvailableError as error:
        pytest.skip(str(error))


def of_both_kinds(stem: Path, quantized: Path) -> dict[str, Path]:
    """A small model with the vocabulary of `quantized`, as `ordinary` GGUF file and as `seeddelta` file."""
    dense = write_llama(stem.with_suffix(".gguf"), quantized)
    recipe = seeddelta.Recipe(input=dense, output=stem.with_suffix(".seeddelta.gguf"), no_checkpoint=True)
    seeddelta.build(recipe, progress=False)
    return {"seeddelta": Path(recipe.output), "ordinary": dense}


@dataclass(frozen=True)
class Told:
    """What a child said: a result a job, its exit code, and the lines of ours on stderr."""

    results: list[Any]
    code: int
    lines: list[str]
    stderr: str

    def lines_of(self, number: int) -> list[str]:
        """Errors of one job: ours, and those of llama.cpp."""
        _, _, after = self.stderr.partition(f"job {number}\n")
        lines = after.partition(f"job {number + 1}\n")[0].splitlines()
        return [line for line in lines if line.startswith("seeddelta: error: ") or "error loading model" in line]

    def logits(self, number: int) -> np.ndarray[Any, Any] | None:
        path = self.results[number]
        return None if path is None else np.load(path)


def tell(
    jobs: Sequence[dict[str, Any]], folder: Path, *preloaded: Path, behind: Sequence[Path] = (), **variables: str
) -> Told:
    """Run jobs in a child of its own, with more libraries preloaded before ours and behind it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDDELTA_")}
    environment |= {
        "LD_PRELOAD": ":".join(map(str, (*preloaded, library(), *behind))),
        **{f"SEEDDELTA_{k.upper()}": v for k, v in variables.items()},
    }
    jobs = json.loads(json.dumps(jobs, default=str))
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder)],
        input=json.dumps(jobs), capture_output=True, text=True, errors="replace", env=environment, timeout=300,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [line for line in done.stderr.splitlines() if line.startswith("seeddelta: ")]
    return Told(results, done.returncode, lines, done.stderr)


def with_scale(source: Path, target: Path, tensor: str, scale: float) -> Path:
    """Copy of a SeedΔ file in which the base of a tensor has another scale."""
    from seeddelta.gguf.reader import open_seeddelta

    with open_seeddelta(source) as file:
        number = list(file.tensors).index(tensor)
    data, key = bytearray(source.read_bytes()), b"seeddelta.tensors.scale"
    at = (
        data.index(key) + len(key) + 16 + 8 * number
    )  # behind the types of the value and of its items, and their number
    data[at : at + 8] = struct.pack("<d", scale)
    target.write_bytes(data)
    return target


def load_and_eval(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [{"load": "m", "path": path, **options}, {"eval": "m", "tokens": BATCHES}]


def python_run(path: Path, **options: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """The logits and the metrics that seeddelta.load has for the same."""
    import seeddelta

    llm = seeddelta.load(
        path,
        n_ctx=128,
        n_batch=128,
        n_threads=2,
        n_threads_batch=2,
        logits_all=True,
        flash_attn=True,
        verbose=False,
        **options,
    )
    for batch in BATCHES:
        llm.eval(batch)
    logits, metrics = np.array(llm.scores[: sum(map(len, BATCHES))]), llm.seeddelta.metrics()
    llm.close()
    return logits, metrics


def python_logits(path: Path, **options: Any) -> np.ndarray[Any, Any]:
    """The logits alone."""
    return python_run(path, **options)[0]
