"""Layers that share a cache of keys, and metrics that are read while a model computes."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from ggml_graph import F16, F32, Graph
from seeddelta import _core

pytest.importorskip("llama_cpp")

from llama_helpers import load_small
from seeddelta.runtime import EventDriven, RuntimeConfig, StatePackKV, library
from seeddelta.runtime.options import core_options
from tiny_llama import write_llama

DIM, POSITIONS, HEADS = 32, 512, 4


def test_layers_with_one_cache_remember_their_own_queries() -> None:
    """The same two queries again and again, each of its layer: nothing has changed for either."""
    rng = np.random.default_rng(6)
    event = EventDriven(target="kv", delta_theta=0.5, gap_every=0)
    options = core_options(RuntimeConfig(state_pack_kv=StatePackKV("exact", min_context=1), event=event))
    hook = _core.GraphHook(_core.WeightRegistry(library.loaded_ggml()))
    _core.OwnAttention(library.loaded_ggml(), options).take_over(hook)
    lib: Any = library.native_library()
    lib.ggml_flash_attn_ext.restype = ctypes.c_void_p
    graph = Graph(1 << 25)
    half = rng.normal(size=(2, POSITIONS, DIM)).astype(np.float16).view(np.uint16)
    k = graph.tensor(F16, DIM, POSITIONS, 2, name="cache_k_l0", data=half)
    v = graph.tensor(F16, DIM, POSITIONS, 2, name="cache_v_l0", data=half[::-1])
    mask = graph.tensor(F16, POSITIONS, 64, data=np.zeros((64, POSITIONS), np.uint16))
    queries = [graph.tensor(F32, DIM, 1, HEADS, data=rng.normal(size=(HEADS, DIM)).astype(np.float32)) for _ in "ab"]
    floats = ctypes.c_float(0.2), ctypes.c_float(0), ctypes.c_float(0)
    for _ in range(5):
        nodes = [ctypes.c_void_p(lib.ggml_flash_attn_ext(graph._context, q, k, v, mask, *floats)) for q in queries]
        for layer, node in enumerate(nodes):
            lib.ggml_set_name(node, f"__fattn__-{layer}".encode())
        graph.compute(hook, *nodes, threads=1)
    metrics = _core.metrics(None, hook)
    graph.close()
    assert metrics["event.enabled"] == 2
    assert metrics["attention.events"] + metrics["event.full"] >= 8
    assert metrics["event.windows_reused"] > 0


def test_metrics_are_read_while_a_model_computes(smollm2_quantized: Path, tmp_path: Path) -> None:
    """By another thread, again and again: each reading is of whole decodes."""
    model = tmp_path / "tiny.gguf"
    recipe = seeddelta.Recipe(
        input=write_llama(tmp_path / "dense.gguf", smollm2_quantized), output=model, bits=4, seeddelta_gap=9
    )
    seeddelta.build(recipe, progress=False)
    config = RuntimeConfig(state_pack_kv=StatePackKV("binary", min_context=8, gap=9.0, layers=""), force=True)
    llm = load_small(model, 1, config=config)
    llm.eval([5])
    each = llm.seeddelta.metrics()["seeddelta.calls"]
    done, seen, wrong = threading.Event(), [], []

    def read() -> None:
        try:
            while not done.is_set():
                metrics = llm.seeddelta.metrics()
                assert len(llm.seeddelta.attention_heads()) in (0, 4)
                seen.append((metrics["seeddelta.calls"], metrics["attention.packed"]))
        except Exception as error:
            wrong.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    rounds = 0
    while rounds < 10 or (len({calls for calls, _ in seen}) < 3 and rounds < 200):  # the reader waits on a busy machine
        rounds += 1
        llm.reset()
        for token in range(5, 45):
            llm.eval([token])
    done.set()
    reader.join()
    llm.close()
    assert wrong == []
    assert each > 0
    assert len({calls for calls, _ in seen}) > 2
    assert [calls % each for calls, _ in seen] == [0] * len(seen)
    assert seen[-1][1] > 0
    assert [packed for _, packed in seen] == sorted(packed for _, packed in seen)
