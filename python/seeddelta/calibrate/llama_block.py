"""One block of a llama in NumPy, forwards and backwards, and the output matrix with labels drawn from the model.

Matrices are named as llama.cpp does, and computed in float32. Architectures: llama (and mistral, which is one in GGUF),
qwen2 (biases) and qwen3 (norms of queries and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import NotAvailableError
from ..gguf import names
from ..gguf.source import SourceModel

F32 = npt.NDArray[np.float32]
S = TypeVar("S")
T = TypeVar("T")
# name of a matrix or a norm in its block, ∂loss/∂y and y (without a bias), float32 [tokens, n_out]
Seen = Callable[[str, F32, F32], object]
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_HALVES = {"llama": False, "qwen2": True, "qwen3": True}  # rotated pairs are halves of a head, not neighbours
_KNOWN = (
    {f"{name}.weight" for name in (*MATRICES, "attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")}
    | {f"{name}.bias" for name in MATRICES}
)  # fmt: skip
_SLICE = 64  # tokens whose logits are in memory at a time


@dataclass(frozen=True)
class LlamaShape:
    """What all blocks of a model share. `frequency` float32 [head / 2]: radians a position of each pair."""

    layers: int
    heads: int
    kv_heads: int
    n_embd: int
    eps: float
    halves: bool
    frequency: F32

    @property
    def head(self) -> int:
        return 2 * len(self.frequency)


def llama_shape(source: SourceModel) -> LlamaShape:
    """Shape of a model. Raises NotAvailableError for a model that is computed in another way."""
    metadata = source.metadata
    architecture = metadata.scalar("general.architecture", str, "")

    def refuse(what: str) -> NotAvailableError:
        return NotAvailableError(
            f"{source.path}: gradients are available for {', '.join(_HALVES)} of the usual form, {what}; "
            "go on without them"
        )

    if architecture not in _HALVES:
        raise refuse(f"not for {architecture or 'a model without an architecture'}")
    for name in source.tensors:
        part = name.split(".", 2)
        if part[0] == "blk" and part[2] not in _KNOWN:
            raise refuse(f"which has no {name!r}")
    key = f"{architecture}."

    def number(name: str, default: float | None = None) -> float:
        values = np.unique(
            np.atleast_1d(metadata[key + name] if default is None else metadata.get(key + name, default))
        )
        if len(values) != 1 or values.dtype.kind not in "iuf":
            raise refuse(f"in which {key}{name} is one number, the same for all layers")
        return float(values[0])

    layers, heads = int(number("block_count")), int(number("attention.head_count"))
    kv_heads = int(number("attention.head_count_kv", heads))
    head = source.tensors["blk.0.attn_q.weight"].shape[0] // heads
    if number("rope.dimension_count", head) != head:
        raise refuse("in which whole heads are rotated")
    scaling = metadata.get(key + "rope.scaling.type", "none")
    if scaling != "none":
        raise refuse(f"without rope scaling ({scaling})")
    base = number("rope.freq_base", 10000.0)
    frequency = base ** (-np.arange(0, head, 2) / head)
    if "rope_freqs.weight" in source.tensors:
        frequency = frequency / source.matrix("rope_freqs.weight").ravel()
    eps = number("attention.layer_norm_rms_epsilon")
    n_embd = int(number("embedding_length"))
    return LlamaShape(layers, heads, kv_heads, n_embd, eps, _HALVES[architecture], frequency.astype(np.float32))


class LlamaBlock:
    """One block. `w` are its weights, float32, named without `blk.N.` and `.weight`."""

    def __init__(self, shape: LlamaShape, w: dict[str, F32]) -> None:
        self.shape, self.w = shape, w

    def _linear(self, name: str, x: F32, outputs: dict[str, F32]) -> F32:
        y = outputs[name] = np.asarray(x @ self.w[name].T)
        bias = self.w.get(f"{name}.bias")
        return y if bias is None else y + bias

    def forward(self, x: F32) -> tuple[F32, Any]:
        """Hidden states after the block, float32 [tokens, n_embd], from those before it; and what is kept."""
        s, n = self.shape, len(x)
        y: dict[str, F32] = {}
        y["attn_norm"], norm_a = rms_norm(x, self.w["attn_norm"], s.eps)
        turn = turns(s, n)
        q, norm_q = self._heads("attn_q", s.heads, turn, y)
        k, norm_k = self._heads("attn_k", s.kv_heads, turn, y)
        v = self._linear("attn_v", y["attn_norm"], y).reshape(n, s.kv_heads, s.head)
        q, k, v = (self._grouped(part) for part in (q, k, v))
        hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        p = softmax(np.asarray(q @ k.swapaxes(-1, -2) * np.float32(s.head**-0.5) + hidden, np.float32))
        o = np.moveaxis(p @ v, 2, 0).reshape(n, -1)
        x = x + self._linear("attn_output", o, y)
        y["ffn_norm"], norm_m = rms_norm(x, self.w["ffn_norm"], s.eps)
        gate, up = (self._linear(name, y["ffn_norm"], y) for name in ("ffn_gate", "ffn_up"))
        sigmoid = np.asarray(1 / (1 + np.exp(-gate)), np.float32)
        after = x + self._linear("ffn_down", gate * sigmoid * up, y)
        return after, (y, norm_a, norm_q, norm_k, turn, q, k, v, p, norm_m, gate, up, sigmoid)

    def backward(self, kept: Any, dx: F32, seen: Seen) -> F32:
        """∂loss/∂x before the block from that after it, float32 [tokens, n_embd]; `seen` gets ∂loss/∂y and y of
        its matrices and norms."""
        y, norm_a, norm_q, norm_k, turn, q, k, v, p, norm_m, gate, up, sigmoid = kept
        n, size = len(dx), self.shape.head

        def back(name: str, dy: F32) -> F32:
            seen(name, dy, y[name])
            return np.asarray(dy @ self.w[name])

        def back_norm(name: str, dy: F32, kept: Any) -> F32:
            seen(name, dy, y[name])
            return norm_back(dy, kept)

        dd = back("ffn_down", dx)
        d_gate = dd * up * sigmoid * (1 + gate * (1 - sigmoid))
        dx = dx + back_norm("ffn_norm", back("ffn_gate", d_gate) + back("ffn_up", dd * gate * sigmoid), norm_m)
        do = self._grouped(back("attn_output", dx))
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * np.float32(size**-0.5)
        dv = (p.swapaxes(-1, -2) @ do).sum(1, keepdims=True)
        dk = (ds.swapaxes(-1, -2) @ q).sum(1, keepdims=True)
        dq, dk, dv = (np.moveaxis(g, 2, 0).reshape(n, -1, size) for g in (ds @ k, dk, dv))
        da = back("attn_q", self._heads_back(dq, norm_q, turn)) + back("attn_k", self._heads_back(dk, norm_k, turn))
        da = da + back("attn_v", dv.reshape(n, -1))
        return np.asarray(dx + back_norm("attn_norm", da, norm_a))

    def _grouped(self, x: F32) -> F32:
        """[kv head, head of its group, token, size of a head]"""
        return np.moveaxis(x.reshape(len(x), self.shape.kv_heads, -1, self.shape.head), 0, 2)

    def _heads(
        self, name: str, heads: int, turn: npt.NDArray[np.complex64], outputs: dict[str, F32]
    ) -> tuple[F32, Any]:
        """Queries or keys of all heads, normalised where the model does that, and rotated."""
        a = outputs["attn_norm"]
        y, kept = self._linear(name, a, outputs).reshape(len(a), heads, -1), None
        if f"{name}_norm" in self.w:
            y, kept = rms_norm(y, self.w[f"{name}_norm"], self.shape.eps)
        return rotate(y, turn, self.shape.halves), kept

    def _heads_back(self, dy: F32, kept: Any, turn: npt.NDArray[np.complex64]) -> F32:
        dy = rotate(dy, turn.conj(), self.shape.halves)
        return (dy if kept is None else norm_back(dy, kept)).reshape(len(dy), -1)


def read_block(source: SourceModel, shape: LlamaShape, layer: int) -> LlamaBlock:
    """A block of a dense model."""
    start = f"blk.{layer}."
    weights = {
        name.removeprefix(start).removesuffix(".weight"): source.matrix(name).reshape(info.shape)
        for name, info in source.tensors.items()
        if name.startswith(start)
    }
    return LlamaBlock(shape, weights)


@dataclass
class LlamaHead:
    """The last norm, float32 [n_embd], and the output matrix, float32 [vocabulary, n_embd]."""

    norm: F32
    matrix: F32
    eps: float

    def predictions(self, x: F32) -> Iterator[tuple[slice, F32]]:
        """Logarithms of the probabilities of all tokens after some of the hidden states, and which states these are."""
        last = rms_norm(x, self.norm, self.eps)[0]
        for begin in range(0, len(last), _SLICE):
            some = slice(begin, begin + _SLICE)
            yield some, log_softmax(last[some] @ self.matrix.T)

    def gradient(self, x: F32, random: np.random.Generator) -> F32:
        """∂loss/∂x float32 [tokens, n_embd]: the loss is Σ −log p(label), the labels are drawn from the prediction."""
        last, kept = rms_norm(x, self.norm, self.eps)
        gradient = np.empty_like(last)
        for begin in range(0, len(last), _SLICE):
            logits = last[begin : begin + _SLICE] @ self.matrix.T
            noise = random.random(logits.shape, np.float32)
            label = (logits - np.log(-np.log(noise + np.float32(1e-12)))).argmax(-1)  # Gumbel's trick
            p = softmax(logits)
            p[np.arange(len(p)), label] -= 1
            gradient[begin : begin + _SLICE] = p @ self.matrix
        return norm_back(gradient, kept)


def read_head(source: SourceModel, shape: LlamaShape) -> LlamaHead:
    """The head of a dense model."""
    matrix = source.matrix(names.HEAD if names.HEAD in source.tensors else names.EMBEDDING)
    return LlamaHead(source.matrix("output_norm.weight").ravel(), matrix, shape.eps)


def in_order(pool: ThreadPoolExecutor, work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Results of all items in their order, as many at a time as there are threads."""
    at_once: int = pool._max_workers
    for begin in range(0, len(items), at_once):
        yield from pool.map(work, items[begin : begin + at_once])


def turns(shape: LlamaShape, tokens: int) -> npt.NDArray[np.complex64]:
    """Rotations of the positions, complex64 [tokens, 1, head / 2]."""
    angle = np.arange(tokens)[:, None] * shape.frequency.astype(np.float64)
    return np.asarray(np.exp(1j * angle), np.complex64)[:, None, :]


def rotate(x: F32, turn: npt.NDArray[np.complex64], halves: bool) -> F32:
    """Rotate float32 [tokens, heads, size]; pairs are neighbours, or the halves of a head."""
    if not halves:
        return (np.ascontiguousarray(x, np.float32).view(np.complex64) * turn).view(np.float32)
    size = x.shape[-1] // 2
    y = (x[..., :size] + np.complex64(1j) * x[..., size:]) * turn
    return np.concatenate([y.real, y.imag], -1)


def rms_norm(x: F32, weight: F32, eps: float) -> tuple[F32, Any]:
    """x normalised along the last axis and scaled, and what `norm_back` needs."""
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * r * weight), (x, r, weight)


def norm_back(dy: F32, kept: Any) -> F32:
    """∂loss/∂x from ∂loss/∂y."""
    x, r, weight = kept
    g = dy * weight
    return np.asarray(r * (g - x * r * r * (g * x).mean(-1, keepdims=True)))


def softmax(x: F32) -> F32:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def log_softmax(x: F32) -> F32:
    """Along the last axis."""
    x = x - x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))
