"""A block of a transformer in NumPy, forwards and backwards, as its BlockShape and its tensors tell.

Matrices are named as llama.cpp does. Each step gives its result and a function for the way back, which takes ∂loss/∂y
and gives ∂loss/∂x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ..gguf import names
from ..gguf.source import SourceModel
from .block_shape import ModelShape
from .mlp import Back, Mlp, Seen, Tensors
from .operations import F32, capped, softmax, softmax_back

S = TypeVar("S")
T = TypeVar("T")
Step = Callable[[F32], tuple[F32, Back]]


class Block(Tensors):
    """One block."""

    def forward(self, x: F32) -> tuple[F32, Back]:
        """Hidden states after the block, [tokens, n_embd], from those before it; and the way back, which tells what it
        is given of all matrices and norms."""
        x, attention_back = self._added(x, "attn_norm", self._attention, "post_attention_norm")
        x, mlp_back = self._added(x, "ffn_norm", Mlp(self.shape, self.w).forward, "post_ffw_norm")
        return x, lambda dx, seen: attention_back(mlp_back(dx, seen), seen)

    def _added(self, x: F32, before: str, step: Step, behind: str) -> tuple[F32, Back]:
        """x and what a step between two norms, where there are these, makes of it."""
        scale = self.shape.residual_scale
        a, before_back = self.norm(before, x)
        y, step_back = step(a)
        y, behind_back = self.norm(behind, y)

        def back(dx: F32, seen: Seen) -> F32:
            return dx + before_back(step_back(behind_back(scale * dx, seen), seen), seen)

        return x + scale * y, back

    def _attention(self, a: F32) -> tuple[F32, Back]:
        s, n = self.shape, len(a)
        q, k, v, projected_back = self._projected(a)
        q, q_back = self._positioned("attn_q_norm", q, s.heads)
        k, k_back = self._positioned("attn_k_norm", k, s.kv_heads)
        q, k, v = (self._grouped(part) for part in (q, k, v))
        scores, cap_back = capped(s.score_scale * (q @ k.swapaxes(-1, -2)), s.score_cap)
        p = softmax(np.where(_visible(n, s.window), scores, np.asarray(-np.inf, scores.dtype)))
        y, output_back = self.linear("attn_output", np.moveaxis(p @ v, 2, 0).reshape(n, -1))

        def back(dy: F32, seen: Seen) -> F32:
            do = self._grouped(output_back(dy, seen))
            ds = s.score_scale * cap_back(softmax_back(p, do @ v.swapaxes(-1, -2)))
            dv = (p.swapaxes(-1, -2) @ do).sum(1, keepdims=True)
            dk = (ds.swapaxes(-1, -2) @ q).sum(1, keepdims=True)
            dq, dk, dv = (np.asarray(np.moveaxis(g, 2, 0).reshape(n, -1), dy.dtype) for g in (ds @ k, dk, dv))
            return projected_back((q_back(dq, seen), k_back(dk, seen), dv), seen)

        return y, back

    def _projected(self, a: F32) -> tuple[F32, F32, F32, Callable[[tuple[F32, F32, F32], Seen], F32]]:
        """Queries, keys and values, [tokens, heads · size]."""
        if "attn_qkv" in self.w:
            y, fused_back = self.linear("attn_qkv", a)
            q, k, v = np.split(y, np.cumsum([self.shape.heads, self.shape.kv_heads]) * self.shape.head, -1)
            return q, k, v, lambda d, seen: fused_back(np.concatenate(d, -1), seen)
        (q, q_back), (k, k_back), (v, v_back) = (self.linear(name, a) for name in ("attn_q", "attn_k", "attn_v"))
        return q, k, v, lambda d, seen: q_back(d[0], seen) + k_back(d[1], seen) + v_back(d[2], seen)

    def _positioned(self, name: str, x: F32, heads: int) -> tuple[F32, Back]:
        """Queries or keys, normalized where the model does that (each head, or all together), and rotated."""
        n, rope = len(x), self.shape.rope
        each = name in self.w and self.w[name].size == self.shape.head
        x, norm_back = self.norm(name, x.reshape(n, heads, -1) if each else x)
        x = x.reshape(n, heads, -1)
        turns = None if rope is None else rope.turns(x)

        def back(dy: F32, seen: Seen) -> F32:
            dy = dy.reshape(n, heads, -1)
            if rope is not None and turns is not None:
                dy = rope.rotate(dy, turns.conj())
            return norm_back(dy if each else dy.reshape(n, -1), seen).reshape(n, -1)

        return x if rope is None or turns is None else rope.rotate(x, turns), back

    def _grouped(self, x: F32) -> F32:
        """[kv head, head of its group, token, size of a head]"""
        return np.moveaxis(x.reshape(len(x), self.shape.kv_heads, -1, self.shape.head), 0, 2)


def _visible(tokens: int, window: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[token, token before it]"""
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    return (back >= 0) & (back < window) if window else back >= 0


def block_matrices(source: SourceModel, layer: int) -> list[str]:
    """The matrices of a block whose gradients are of use: all but routers and stacks of experts."""
    return [
        name
        for name, info in source.tensors.items()
        if len(info.shape) == 2 and (place := names.split_name(name)) is not None and place[0] == layer
    ]


def read_block(source: SourceModel, shape: ModelShape, layer: int) -> Block:
    """A block of an original model."""
    start = f"blk.{layer}."
    weights = {
        name.removeprefix(start).removesuffix(".weight"): source.matrix(name).reshape(info.shape)
        for name, info in source.tensors.items()
        if name.startswith(start)
    }
    return Block(shape.blocks[layer], weights)


def in_order(pool: ThreadPoolExecutor, work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Results of all items in their order, as many at a time as there are threads."""
    at_once: int = pool._max_workers
    for begin in range(0, len(items), at_once):
        yield from pool.map(work, items[begin : begin + at_once])
