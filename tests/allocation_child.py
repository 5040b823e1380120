"""Decodes of a process into which tests/faults/allocations.cpp is preloaded; prints what happened as JSON.

python allocation_child.py DENSE MODEL OPTIONS FAIL: OPTIONS are those of RuntimeConfig as Python, FAIL is 0 or 1.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import seeddelta
from llama_cpp import llama_cpp as native
from seeddelta import _core
from seeddelta.errors import OutOfMemoryError
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackKV, contexts  # noqa: F401 - for OPTIONS
from tiny_llama import N_VOCAB

# Prompts that grow and single tokens between them: buffers grow again and again.
STEPS = [list(range(5, 5 + n)) for n in (3, 1, 9, 1, 1, 20, 1, 33, 1, 1)]


def lib() -> Any:
    faults = ctypes.CDLL(None)
    faults.faults_range.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
    faults.faults_arm.argtypes = (ctypes.c_long,)
    faults.faults_seen.restype = faults.faults_computing.restype = ctypes.c_long
    for which, name in enumerate((_core._core.__file__, "libggml-cpu.so", "libstdc++.so", "libggml-base.so")):
        with open("/proc/self/maps", encoding="utf-8") as file:
            lines = [line.split() for line in file if name in line]
        bounds = [int(bound, 16) for line in lines for bound in line[0].split("-")]
        assert bounds, name
        faults.faults_range(which, min(bounds), max(bounds))
    return faults


def decode(context: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Last logits of each step."""
    for tokens in STEPS:
        array = (native.llama_token * len(tokens))(*tokens)
        assert native.llama_decode(context, native.llama_batch_get_one(array, len(tokens))) == 0
        yield np.ctypeslib.as_array(native.llama_get_logits(context), shape=(N_VOCAB,)).copy()


def fresh(context: Any) -> list[np.ndarray[Any, Any]]:
    native.llama_memory_clear(native.llama_get_memory(context), True)
    return list(decode(context))


def main(dense: str, path: str, options: str, fail: bool) -> dict[str, Any]:
    config = RuntimeConfig(**({"force": True} | eval(options)))  # results that do not depend on time
    threads = 2
    llm = seeddelta.load(path, fallback=dense, config=config, n_ctx=128, n_threads=threads, verbose=False)
    faults = lib()
    params = native.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 128, 64, 64
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_ENABLED
    else:  # older ones
        params.flash_attn = True

    def make() -> Any:
        return native.llama_init_from_model(llm._model.model, params)

    context = make()
    before = faults.faults_computing()
    expected = fresh(context)
    computing = faults.faults_computing() - before
    dense_calls = contexts.handle_of(context).metrics().get("seeddelta.dense_calls", 0)
    repeats = all(np.array_equal(one, other) for one, other in zip(fresh(context), expected, strict=True))
    native.llama_free(context)
    failures, messages, number, seen = 0, set(), 0, 0
    while fail:
        number += 1
        faults.faults_arm(number)
        context = None
        try:
            context = make()
            for logits, right in zip(decode(context), expected, strict=True):
                np.testing.assert_array_equal(logits, right)
        except OutOfMemoryError as error:
            failures += 1
            messages.add(str(error))
        seen = faults.faults_seen()
        faults.faults_arm(0)
        if context is not None:
            tolerance = 0.0 if repeats else 0.3  # events depend on what was before
            np.testing.assert_allclose(fresh(context), expected, rtol=0, atol=tolerance)
            native.llama_free(context)
        if seen < number:
            break
    found = {"computing": computing, "seen": seen, "failures": failures, "number": number}
    return found | {"messages": sorted(messages), "dense_calls": dense_calls}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1")))
