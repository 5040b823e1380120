"""A model whose KV cache is driven by llama.cpp's C interface, through everything that can happen to one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import seeddelta
from seeddelta import RuntimeConfig, StatePackKV
from seeddelta.runtime import library
from tiny_llama import N_VOCAB, write_llama

Array = np.ndarray[Any, Any]
EVERYWHERE: dict[str, Any] = {"layers": "", "min_context": 0, "recent": 4, "sinks": 1}


@pytest.fixture(scope="module", name="tiny")
def tiny_fixture(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "attention-llama.gguf", smollm2_quantized)


@pytest.fixture(name="load")
def load_fixture(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`load(path, pack, threads=1, **llama_kwargs)`, with None llama.cpp's attention; closed at the end."""
    opened: list[Any] = []

    def open_one(path: Path, pack: StatePackKV | RuntimeConfig | None, threads: int = 1, **options: Any) -> Any:
        settings: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "flash_attn": True, "logits_all": True}
        if pack is None:
            config = RuntimeConfig(attention="llama")
        else:
            config = pack if isinstance(pack, RuntimeConfig) else RuntimeConfig(state_pack_kv=pack, force=True)
        llm = seeddelta.load(
            path, config=config, n_threads=threads, n_threads_batch=threads, verbose=False, **(settings | options)
        )
        opened.append(llm)
        return llm

    yield open_one
    for llm in opened:
        llm.close()


def one_by_one(llm: Any, count: int = 90) -> Array:
    """Logits of a prompt of 40 tokens and of single ones after it."""
    tokens = [(7 * i * i + 3 * i) % (N_VOCAB - 32) + 32 for i in range(count)]
    llm.reset()
    llm.eval(tokens[:40])
    for token in tokens[40:]:
        llm.eval([token])
    return np.array(llm.scores[:count])


class Machine:
    """A context of two sequences, driven by the C interface."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.context = llm._ctx
        self.memory = llama_cpp.llama_get_memory(llm.ctx)
        self.batch = llama_cpp.llama_batch_init(512, 0, 2)

    def decode(self, tokens: list[int], position: int, sequence: int) -> Array:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i + 1 == len(tokens)
        assert llama_cpp.llama_decode(self.llm.ctx, batch) == 0
        self.llm.seeddelta.check()
        logits = llama_cpp.llama_get_logits(self.llm.ctx)
        return np.array(np.ctypeslib.as_array(logits, (N_VOCAB,)))

    def shift(self, keep: int, count: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, 0, keep, keep + count)
        llama_cpp.llama_memory_seq_add(self.memory, 0, keep + count, -1, -count)

    def copy(self) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, 1, -1, -1)
        llama_cpp.llama_memory_seq_cp(self.memory, 0, 1, -1, -1)

    def forget(self, sequence: int, begin: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, begin, -1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self.memory, True)

    def save(self) -> bytes:
        size = llama_cpp.llama_state_get_size(self.llm.ctx)
        data = (ctypes.c_uint8 * size)()
        return bytes(data[: llama_cpp.llama_state_get_data(self.llm.ctx, data, size)])

    def restore(self, state: bytes, *, secretly: bool = False) -> None:
        data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if secretly:
            function = library.native_library()["llama_state_set_data"]
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t
            assert function(self.llm.ctx, data, len(state))
        else:
            assert llama_cpp.llama_state_set_data(self.llm.ctx, data, len(state))

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)


@pytest.fixture(name="two_sequences")
def two_sequences_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let contexts have two sequences, in one cache or in one each."""
    original = llama_cpp.llama_cpp.llama_context_default_params

    def choose(unified: bool) -> None:
        def params() -> Any:
            made = original()
            made.n_seq_max, made.kv_unified = 2, unified
            return made

        monkeypatch.setattr(llama_cpp.llama_cpp, "llama_context_default_params", params)

    return choose


def walk(machines: Sequence[Machine], rng: np.random.Generator, *, room: int, prompt: int, tokens: int = 1) -> int:
    """A random walk of 90 steps, the first of them a prompt.

    There are at most `room` tokens in the cache, less than `prompt` in a prompt, and single ones come in rows of
    `tokens`. The logits of the first two machines must be the same bits. Returns how often a state was loaded behind
    our back.
    """
    length = [0, 0]
    saved: list[tuple[list[bytes], list[int]]] = []
    secret = 0
    actions = ["token"] * 12 + ["prompt", "shift", "shift", "copy", "forget", "clear", "save", "restore", "secret"]
    for step in range(90):
        action = rng.choice(actions) if step else "prompt"
        if action in ("token", "prompt"):
            sequence = int(rng.integers(2))
            size = 1 if action == "token" else int(rng.integers(2, prompt))
            count = tokens if action == "token" else 1
            if sum(length) + size * count > room:
                action = "clear"
            for _ in range(0 if action == "clear" else count):
                drawn = rng.integers(32, N_VOCAB, size).tolist()
                exact, kept, *_ = (machine.decode(drawn, length[sequence], sequence) for machine in machines)
                np.testing.assert_array_equal(kept, exact)
                length[sequence] += size
        elif action == "shift" and length[0] > 20:
            for machine in machines:
                machine.shift(4, 8)
            length[0] -= 8
        elif action == "copy" and 2 * length[0] <= room:
            for machine in machines:
                machine.copy()
            length[1] = length[0]
        elif action == "forget":
            sequence = int(rng.integers(2))
            begin = int(rng.integers(length[sequence] + 1))
            for machine in machines:
                machine.forget(sequence, begin)
            length[sequence] = begin
        elif action == "save":
            saved.append(([machine.save() for machine in machines], list(length)))
        elif action in ("restore", "secret") and saved:
            states, lengths = saved[int(rng.integers(len(saved)))]
            for machine, state in zip(machines, states, strict=True):
                machine.restore(state, secretly=action == "secret")
            secret += action == "secret"
            length = list(lengths)
        if action == "clear":
            for machine in machines:
                machine.clear()
            length = [0, 0]
    return secret
