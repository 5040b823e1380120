"""Threads, forks, and models that go in any order."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta import _core

pytest.importorskip("llama_cpp")

from llama_cpp import llama_cpp as native
from llama_helpers import load_small, logits_of
from seeddelta.errors import OutOfMemoryError
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
    return _core.Weight("w", 64, 128, base_kind=0, base_scale=1.0, arrays={"row_scale": row_scale})


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
    gc.freeze()  # what other tests left is not looked through again and again
    for name in order:
        del kept[name]
        gc.collect()
        if "handle" in kept:
            assert kept["handle"].counters()["blk.0.attn_q.weight"]["calls"] > 0
    gc.unfreeze()


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


def assert_same_bits(tiny: Path, counts: Iterable[int]) -> None:
    """A prompt and a single token. A handful, for threads that wait for their turn hold up all others at each node."""
    results = []
    for threads in counts:
        llm = load_small(tiny, threads)
        results.append(np.vstack([logits_of(llm, TOKENS[:5]), logits_of(llm, TOKENS[:1])]))
        llm.close()
    for found in results:
        np.testing.assert_array_equal(found, results[0])


def test_more_threads_than_the_machine_has(tiny: Path) -> None:
    assert_same_bits(tiny, (1, 3, 16))


@pytest.mark.slow
def test_one_to_sixteen_threads(tiny: Path) -> None:
    assert_same_bits(tiny, range(1, 17))


# What is going on when the interpreter ends.
ENDINGS = {
    "a generator half consumed": "next(text); next(text)",
    "a generator that nobody began": "",
    "a thread that generates": """
        def generate():
            for piece in text:
                begun.set()
        threading.Thread(target=generate, daemon=True).start()
        begun.wait()
    """,
    "a thread that decodes batches": """
        def decode():
            while True:
                llm.reset()
                llm.eval(list(range(5, 125)))
                begun.set()
        threading.Thread(target=decode, daemon=True).start()
        begun.wait()
    """,
    "an exception in between": "next(text); raise SystemExit(0)",
    "a cycle": "next(text); llm.itself = [llm, text]; del llm, text",
    "a child that was forked": "next(text); child = os.fork(); child and os.waitpid(child, 0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_in_the_middle(tiny: Path, ending: str) -> None:
    if "fork" in ENDINGS[ending] and not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    program = f"""
        import os, sys, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from llama_helpers import load_small
        llm, begun = load_small({str(tiny)!r}, 1), threading.Event()
        text = llm.create_completion("The sea", max_tokens=100, stream=True, logit_bias={{}})
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program) + textwrap.dedent(ENDINGS[ending])],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr
    assert "terminate" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_metrics_in_children_that_are_forked_while_another_thread_computes(tiny: Path) -> None:
    """The lock that readings wait for is never held in a child by a thread that is not there."""
    program = f"""
        import os, sys, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from llama_helpers import load_small
        llm, begun = load_small({str(tiny)!r}, 1), threading.Event()
        {ENDINGS["a thread that decodes batches"]}
        for _ in range(30):
            child = os.fork()
            if child == 0:
                os._exit(0 if llm.seeddelta.metrics()["seeddelta.calls"] > 0 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        before = llm.seeddelta.metrics()["seeddelta.calls"]
        while llm.seeddelta.metrics()["seeddelta.calls"] == before:
            pass
        os._exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_no_memory_for_another_context(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model stays as it was."""
    llm = load_small(tiny, 1)
    expected = logits_of(llm, TOKENS)

    def no_memory(registry: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_core, "GraphHook", no_memory)
        with pytest.raises(OutOfMemoryError, match="no memory for another context"):
            native.llama_init_from_model(llm._model.model, native.llama_context_default_params())
        with pytest.raises(OutOfMemoryError, match="no memory for another context"):
            load_small(tiny, 1)
    np.testing.assert_array_equal(logits_of(llm, TOKENS), expected)
