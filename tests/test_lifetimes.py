"""Threads, forks, and models that go in any order."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta import _core

pytest.importorskip("llama_cpp")

from llama_helpers import load_small, logits_of
from tiny_llama import write_llama

TOKENS = list(range(5, 25))


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lifetimes")
    dense = write_llama(folder / "dense.gguf", smollm2_quantized)
    seeddelta.build(seeddelta.Recipe(input=dense, output=folder / "tiny.gguf", bits=4), progress=False)
    return folder / "tiny.gguf"


def weight() -> Any:
    rng = np.random.default_rng(1)
    row_scale = rng.uniform(0.5, 1, 64).astype(np.float16)
    return _core.Weight("w", 64, 128, base_kind=0, base_scale=1.0, row_scale=row_scale)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_core_works_in_a_forked_child() -> None:
    """It has no threads between its calls, so nothing is missing in a child."""
    w, x = weight(), np.ones((8, 128), np.float32)
    expected = w.matmul(x, threads=3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if np.array_equal(w.matmul(x, threads=3), expected) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(w.matmul(x, threads=3), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_ends_takes_nothing_from_its_parent(tiny: Path) -> None:
    llm = load_small(tiny, 1)
    expected = logits_of(llm, TOKENS)
    child = os.fork()
    if child == 0:
        try:
            llm.close()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(logits_of(llm, TOKENS), expected)


@pytest.mark.parametrize("order", list(itertools.permutations(("llm", "handle", "context"))))
def test_any_order_of_deletes(tiny: Path, order: tuple[str, ...]) -> None:
    llm = load_small(tiny, 1)
    kept = {"llm": llm, "handle": llm.seeddelta, "context": llm._ctx}
    logits_of(llm, TOKENS)
    del llm
    for name in order:
        del kept[name]
        gc.collect()
        if "handle" in kept:
            assert kept["handle"].counters()["blk.0.attn_q.weight"]["calls"] > 0


def test_threads_that_load_compute_and_free(tiny: Path) -> None:
    expected, wrong = logits_of(load_small(tiny, 1), TOKENS), []

    def work() -> None:
        for _ in range(3):
            llm = load_small(tiny, 1)
            try:
                if not np.array_equal(logits_of(llm, TOKENS), expected):
                    wrong.append("other logits")
            except Exception as error:
                wrong.append(repr(error))
            llm.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
