"""Which keys bits and pages would choose for real queries, in NumPy: every bit of it can be varied here.

The sums are those of simd/attention_kernels.hpp and key_pack.hpp; the program itself chooses with its own.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cache_state import read_rows, sequence_state
from llama_cpp import Llama, llama_cpp
from seeddelta.session.decoder import Decoder

Array = np.ndarray[Any, Any]
SHARES = (0.02, 0.04, 0.08, 0.16, 0.25, 0.4)
SINKS, RECENT = 4, 64  # always chosen
TOP = 64  # k of recall@k
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


@contextmanager
def watched(pattern: bytes, found: dict[str, Array]) -> Iterator[None]:
    """Contexts made within put the float32 data of nodes whose name matches into `found`, once it has a key ""."""
    library = llama_cpp._lib
    for name, result in (
        ("ggml_get_name", ctypes.c_char_p),
        ("ggml_get_data", ctypes.c_void_p),
        ("ggml_nbytes", ctypes.c_size_t),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, [ctypes.c_void_p]

    def call(node: int, ask: bool, _: int) -> bool:
        name = library.ggml_get_name(node)
        if "" not in found or not re.fullmatch(pattern, name):
            return False
        if not ask:  # the last node of a name has been through RoPE
            data = (ctypes.c_uint8 * library.ggml_nbytes(node)).from_address(library.ggml_get_data(node))
            found[name.decode()] = np.frombuffer(data, np.float32).copy()
        return True

    callback = _CALLBACK(call)
    original = llama_cpp.llama_context_default_params

    def params() -> Any:
        made = original()
        made.cb_eval = llama_cpp.ggml_backend_sched_eval_callback(ctypes.cast(callback, ctypes.c_void_p).value)
        return made

    llama_cpp.llama_context_default_params = params
    try:
        yield
    finally:
        llama_cpp.llama_context_default_params = original


def capture(dense: Path, tokens: Array, queries: int, threads: int) -> tuple[Array, Array, Array]:
    """Queries [n, layers, heads, dim] of the last tokens, scaled; keys and values [layers, KV heads, tokens, dim]."""
    found: dict[str, Array] = {}
    with watched(rb"Qcur-\d+", found):
        llm = Llama(
            str(dense), n_ctx=-(-len(tokens) // 256) * 256, n_batch=512, n_threads=threads, n_threads_batch=threads,
            flash_attn=True, verbose=False,
        )  # fmt: skip
        decoder = Decoder(llm)
        begin = len(tokens) - queries
        for at in range(0, begin, decoder.n_batch):
            decoder.decode(tokens[at : min(at + decoder.n_batch, begin)], at, slice(0, 0))
        q = []
        found[""] = np.empty(0)
        for at in range(begin, len(tokens)):
            decoder.decode(tokens[at : at + 1], at)
            q.append([found[name] for name in sorted(found, key=lambda name: (len(name), name)) if name])
        rows = read_rows(sequence_state(llm))
        n_head = int(llm.metadata["llama.attention.head_count"])
        n_kv_head = int(llm.metadata["llama.attention.head_count_kv"])
        llm.close()
    queries_of = np.array(q).reshape(queries, len(rows) // 2, n_head, -1)
    cached = np.array([one.data.view(np.float16) for one in rows])
    k, v = cached.reshape(2, -1, cached.shape[1], n_kv_head, queries_of.shape[3]).swapaxes(2, 3)
    return queries_of / np.float32(k.shape[3] ** 0.5), k, v


class Keys:
    """Keys [n, dim] of one KV head, centred and measured in each channel's scale."""

    def __init__(self, k: Array) -> None:
        self.k = k.astype(np.float32)
        mean = self.k.mean(0)
        self.scale = np.abs(self.k - mean).mean(0)
        self.relative = (self.k - mean) / self.scale

    def binary(self, q: Array) -> Array:
        """What the program does: one gamma for all positions, which changes no order and is left out here."""
        return np.asarray(six_bits(q * self.scale) @ np.sign(self.relative).T)

    def with_gamma(self, q: Array) -> Array:
        return self.binary(q) * np.abs(self.relative).mean(1)

    def unscaled(self, q: Array) -> Array:
        return np.asarray(six_bits(q) @ np.sign(self.relative).T)

    def popcount(self, q: Array) -> Array:
        q = q * self.scale
        return np.asarray((np.sign(q) * np.abs(q).mean(-1, keepdims=True)) @ np.sign(self.relative).T)

    def ternary(self, q: Array, eps: float = 1.2) -> Array:
        """What the program does: channels in their own units, a gamma for each position."""
        centred = self.relative * self.scale
        size = np.abs(centred)
        on = size > eps * size.mean(1, keepdims=True)
        gamma = (size * on).sum(1) / np.maximum(on.sum(1), 1)
        return np.asarray((six_bits(q) @ (np.sign(centred) * on).T) * gamma)

    def exact(self, q: Array) -> Array:
        return q @ self.k.T

    def pages(self, q: Array, size: int, bound: bool) -> Array:
        """A score a page, for its positions: query times mean key, or the most that a key within the page's least and
        largest channels can have."""
        n = len(self.k) // size * size
        page = self.k[:n].reshape(-1, size, self.k.shape[1])
        if bound:
            plus, minus = np.maximum(q, 0), np.minimum(q, 0)
            score = plus @ page.max(1).T + minus @ page.min(1).T
        else:
            score = q @ page.mean(1).T
        rest = np.repeat(score.max(-1, keepdims=True), len(self.k) - n, -1)
        return np.concatenate([np.repeat(score, size, -1), rest], -1)


def six_bits(q: Array) -> Array:
    step = np.abs(q).max(-1, keepdims=True) / 31
    return np.asarray(np.round(q / step) * step)


Estimate = Callable[[Keys, Array], Array]
CHOICES: dict[str, Estimate] = {
    "the true scores": Keys.exact,
    "binary": Keys.binary,
    "binary, channels not scaled": Keys.unscaled,
    "binary, a gamma for each key": Keys.with_gamma,
    "binary, popcount": Keys.popcount,
    "ternary, eps 0.5": lambda keys, q: keys.ternary(q, 0.5),
    "ternary, eps 1.2": Keys.ternary,
    "pages of 32, bound, alone": lambda keys, q: keys.pages(q, 32, True),
}
# size, bound, of which choice
PAGES: dict[str, tuple[int, bool, str]] = {
    f"{choice} in half of the pages of {size}, {'bound' if bound else 'mean key'}": (size, bound, choice)
    for choice, size, bound in (
        ("binary", 32, True), ("binary", 64, True), ("binary", 32, False), ("ternary, eps 1.2", 32, True),
    )
}  # fmt: skip
PART = 0.5


def nearness(estimates: Array) -> Array:
    """[heads of a KV head, n] -> [n]: that of the nearest head."""
    return np.asarray((estimates - estimates.max(1, keepdims=True)).max(0))


def chosen(near: Array, share: float) -> Array:
    keep = np.zeros(len(near), bool)
    keep[:SINKS] = keep[-RECENT:] = True
    count = int(np.ceil(share * len(near)))
    keep[np.argpartition(-near, count - 1)[:count]] = True
    return keep


def recall_curves(q: Array, k: Array, first_layer: int = 2) -> dict[str, list[dict[str, float]]]:
    """For each choice and share: share attended to, softmax mass kept, and share kept of the true top positions."""
    queries, n_layers, n_head, _ = q.shape
    n_kv_head = k.shape[1]
    group = n_head // n_kv_head
    sums: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for layer in range(first_layer, n_layers):
        for head in range(n_kv_head):
            keys = Keys(k[layer, head])
            of_group = q[:, layer, head * group : (head + 1) * group]
            estimates = {name: choose(keys, of_group) for name, choose in CHOICES.items()}
            pages = {name: keys.pages(of_group, size, bound) for name, (size, bound, _) in PAGES.items()}
            for i in range(queries):
                n = k.shape[2] - queries + i + 1
                true = estimates["the true scores"][i, :, :n].astype(np.float64)
                weight = np.exp(true - true.max(1, keepdims=True))
                weight /= weight.sum(1, keepdims=True)
                top = np.argpartition(-true, TOP, axis=1)[:, :TOP]
                near = {name: nearness(found[i, :, :n]) for name, found in estimates.items()}
                for name, found in pages.items():
                    page = nearness(found[i, :, :n])
                    near[name] = np.where(page >= np.quantile(page, 1 - PART), near[PAGES[name][2]], -np.inf)
                for name, one in near.items():
                    for share in SHARES:
                        keep = chosen(one, share)
                        point = (keep.mean(), (weight * keep).sum(1).mean(), keep[top].mean())
                        sums.setdefault((name, share), []).append(point)
    curves: dict[str, list[dict[str, float]]] = {}
    for (name, share), points in sums.items():
        density, mass, recall = np.mean(points, axis=0)
        curves.setdefault(name, []).append(
            {"share": share, "density": float(density), "mass": float(mass), "recall": float(recall)}
        )
    return curves
