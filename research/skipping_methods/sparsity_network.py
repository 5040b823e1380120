"""A llama in NumPy that leaves inputs of its matrices out, by the methods of sparsity_methods.py: many side by side,
layer by layer, each with a residual stream of its own beside the original model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from gradient_covariance import Llama, rotate, softmax
from seeddelta.sparsify.allocate import Profile

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
INPUTS = ("qkv", "o", "gu", "down")
FLAGS = ("fit", "residual", "shift", "cats", "rotate", "heads", "threshold", "first")


@dataclass(frozen=True)
class Method:
    """`keep` has fractions of inputs, or of one layer's (`down@3`)."""

    spec: str
    keep: dict[str, float]
    flags: frozenset[str]

    @classmethod
    def parse(cls, spec: str) -> Method:
        first, *flags = spec.split("+")
        keep = {name: float(value) for name, _, value in (part.partition("=") for part in first.split(",") if part)}
        unknown = set(flags).difference(FLAGS) | set(keep).difference((*INPUTS, "share"))
        if unknown:
            raise SystemExit(f"{spec}: unknown are {sorted(unknown)}; inputs are {INPUTS}, flags {FLAGS}")
        return cls(spec, keep, frozenset(flags))

    def fraction(self, name: str, layer: int) -> float:
        return self.keep.get(f"{name}@{layer}", self.keep.get(name, 1.0))

    @property
    def calibrated(self) -> bool:
        """The stream has calibration chunks, too."""
        return "fit" in self.flags

    def whole(self, layer: int) -> bool:
        """The layer is computed with all inputs."""
        return "fit" not in self.flags and all(self.fraction(name, layer) >= 1 for name in INPUTS)


@dataclass
class Stream:
    """The residual stream of one method, float32 [chunks, tokens, width]: calibration first, then what is scored."""

    method: Method
    x: F32
    calibration: int
    read: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # fraction read and weights, by layer
    nll: list[F64] = field(default_factory=list)
    kl: list[F64] = field(default_factory=list)
    drift: list[tuple[float, float]] = field(default_factory=list)  # |x − dense|² / |dense|², first token and others


class Skipper:
    """One matrix input of one method: chooses inputs, fits weights, multiplies."""

    def __init__(self, network: Network, stream: Stream, name: str, layer: int, weights: F32) -> None:
        self.network, self.stream, self.name, self.layer = network, stream, name, layer
        self.weights, self.norms, self.size = weights, np.linalg.norm(weights, axis=0), weights.size
        self.fraction = stream.method.fraction(name, layer)
        self.flags = stream.method.flags
        self.bias: F32 | None = None
        self.whole = (weights, self.bias)  # for the first token

    def choose(self, x: F32, sample: F32, score: F32 | None = None, sample_score: F32 | None = None) -> F32:
        """z of all chunks, float32 [chunks, tokens, in]; `score` replaces |x|·norm. Notes what is read.

        `sample` is of the original model's inputs on the calibration text, float32 [tokens, in].
        """
        if "shift" in self.flags:
            w = inverse_square(sample)[:, None]
            mean = ((sample * w).sum(0) / w.sum()).astype(np.float32)
            x, sample = x - mean, sample - mean
            self.bias = self.weights @ mean
            self.whole = (self.weights, self.bias)
        if self.fraction >= 1:
            self.note(1.0)
            return x
        keep = round(self.fraction * x.shape[-1])
        z, kept = np.empty_like(x), np.zeros(len(x))
        limit: float | None = None
        if "threshold" in self.flags:
            known = np.abs(sample) * self.norms if sample_score is None else sample_score
            limit = float(np.quantile(known, 1 - self.fraction))

        def one(chunk: int) -> None:
            s = np.abs(x[chunk]) * self.norms if score is None else score[chunk]
            least: Any = limit
            if least is None:
                least = np.partition(s, s.shape[-1] - keep, axis=-1)[:, s.shape[-1] - keep, None]
            mask = s >= least
            kept[chunk] = mask[1:].mean()
            if "first" in self.flags:
                mask[0] = True
            np.multiply(x[chunk], mask, out=z[chunk])

        self.network.each(one, len(x))
        self.note(float(kept[self.stream.calibration :].mean()))
        return z

    def note(self, kept: float) -> None:
        self.stream.read.setdefault(self.name, []).append((kept, self.size))

    def fit(self, z: F32, token_weights: F32, target: F32 | None = None, dense: F32 | None = None) -> None:
        """New weights for y = W' z. Give the target of the calibration chunks, or the dense inputs it is W times of."""
        if "fit" not in self.flags or (self.fraction >= 1 and "residual" not in self.flags):
            return
        n = self.stream.calibration
        z = z[:n]
        if "first" in self.flags:
            token_weights = token_weights.copy()
            token_weights[:, 0] = 0
        other = target if target is not None else dense
        assert other is not None
        ss, ts = self.network.moments(z, other[:n], token_weights)
        if target is None:
            ts = self.weights.astype(np.float64) @ ts
        prior = self.weights.astype(np.float64)
        ridge = self.network.ridge * np.trace(ss) / len(ss)
        ss[np.diag_indices_from(ss)] += ridge
        self.weights = np.linalg.solve(ss, (ts + ridge * prior).T).T.astype(np.float32)

    def times(self, z: F32) -> F32:
        """y of one chunk, float32 [tokens, out]."""
        y = z @ self.weights.T
        if self.bias is not None:
            y += self.bias
        if "first" in self.flags and self.weights is not self.whole[0]:
            y[0] = self.whole[0] @ z[0] + (0 if self.whole[1] is None else self.whole[1])
        return np.asarray(y, np.float32)


class Network:
    """A llama that is computed layer by layer for all chunks and methods."""

    def __init__(self, llama: Llama, threads: int, ridge: float) -> None:
        self.llama, self.w, self.ridge = llama, llama.w, ridge
        self.pool = ThreadPoolExecutor(threads)
        self.threads = threads
        self.basis = np.zeros((0, 0), np.float32)
        self.samples: dict[tuple[str, int], F32] = {}  # dense inputs on the calibration text, float32 [tokens, in]

    def each(self, function: Callable[[int], Any], count: int) -> list[Any]:
        return list(self.pool.map(function, range(count)))

    def moments(self, z: F32, other: F32, weights: F32) -> tuple[F64, F64]:
        """Σ w z zᵀ and Σ w other zᵀ over chunks and tokens."""

        def part(number: int) -> tuple[F64, F64]:
            ss, ts = np.zeros((z.shape[-1],) * 2), np.zeros((other.shape[-1], z.shape[-1]))
            for chunk in range(number, len(z), self.threads):
                weighted = z[chunk] * weights[chunk][:, None]
                ss += z[chunk].T @ weighted
                ts += other[chunk].T @ weighted
            return ss, ts

        parts = self.each(part, self.threads)
        return sum(p[0] for p in parts), sum(p[1] for p in parts)

    def normed(self, x: F32) -> F32:
        """x / rms(x), float32."""
        out = np.empty_like(x)

        def one(chunk: int) -> None:
            out[chunk] = normed(x[chunk], self.llama.eps)

        self.each(one, len(x))
        return out

    def attention(self, qkv: Callable[[int], F32], chunks: int, tokens: int) -> F32:
        """Attention's outputs before attn_output, float32 [chunks, tokens, heads · size]."""
        heads, kv, n = self.llama.heads, self.llama.kv_heads, tokens
        size = self.w["blk.0.attn_q"].shape[0] // heads
        angle = np.arange(n)[:, None] * self.llama.base ** (-np.arange(0, size, 2) / size)
        turn = np.exp(1j * angle).astype(np.complex64)[:, None, :]
        hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        out = np.empty((chunks, n, heads * size), np.float32)

        def one(chunk: int) -> None:
            q, k, v = np.split(qkv(chunk), [heads * size, (heads + kv) * size], axis=-1)
            q = rotate(q.reshape(n, heads, size), turn) / np.float32(size**0.5)
            k = rotate(k.reshape(n, kv, size), turn)
            v = v.reshape(n, kv, size)
            for head in range(heads):
                group = head // (heads // kv)
                p = softmax(q[:, head] @ k[:, group].T + hidden)
                out[chunk, :, head * size : (head + 1) * size] = p @ v[:, group]

        self.each(one, chunks)
        return out

    def stacked(self, layer: int, kinds: Sequence[str], norm: str) -> F32:
        """Matrices one above the other, the norm's weights and the basis folded in."""
        at = f"blk.{layer}."
        w = np.concatenate([self.w[at + kind] for kind in kinds]) * self.w[at + norm]
        return np.asarray(w, np.float32)

    def rotated(self, stream: Stream, a: F32) -> F32:
        return a @ self.basis if "rotate" in stream.method.flags else a

    def dense_layer(self, x: F32, layer: int) -> tuple[F32, F32, F32, F32, F32]:
        """Attention's normed input, what its output matrix reads, the stream behind it; the MLP's input, the stream."""
        at = f"blk.{layer}."
        a = self.normed(x)
        wa = self.matrix("qkv", layer)
        o = self.attention(lambda c: np.asarray(a[c] @ wa.T), len(x), x.shape[1])
        middle = x + self.by_chunk(lambda c: o[c] @ self.w[at + "attn_output"].T, len(x))
        m = self.normed(middle)
        wm = self.matrix("gu", layer)
        after = middle + self.by_chunk(lambda c: neurons(m[c] @ wm.T) @ self.w[at + "ffn_down"].T, len(x))
        return a, o, middle, m, after

    def by_chunk(self, function: Callable[[int], F32], chunks: int) -> F32:
        return np.stack(self.each(function, chunks))

    def layer(self, stream: Stream, layer: int, x_d: F32, dense: tuple[F32, F32, F32, F32, F32]) -> None:
        """One layer of a method; x_d and `dense` are the original model's before and in the layer."""
        a_d, _, middle_d, m_d, after_d = dense
        if stream.x is x_d and stream.method.whole(layer):
            stream.x = after_d
            for name in INPUTS:
                stream.read.setdefault(name, []).append((1.0, self.matrix(name, layer).size))
            return
        residual, n = "residual" in stream.method.flags, stream.calibration
        self.attention_half(stream, layer, a_d[:n], middle_d[:n] - (stream.x if residual else x_d)[:n], middle_d[:n])
        self.mlp_half(stream, layer, m_d[:n], after_d[:n] - (stream.x if residual else middle_d)[:n], after_d[:n])

    def attention_half(self, stream: Stream, layer: int, a_d: F32, target: F32, middle_d: F32) -> None:
        """Attention of a method. The original model's on the calibration chunks: a_d its inputs, middle_d the stream
        behind it; `target` is what the output matrix is fitted to."""
        flags, count = stream.method.flags, len(stream.x)
        qkv = Skipper(self, stream, "qkv", layer, self.rotated(stream, self.matrix("qkv", layer)))
        z = qkv.choose(self.rotated(stream, self.normed(stream.x)), self.rotated(stream, self.samples["qkv", layer]))
        qkv.fit(z, inverse_square(a_d), dense=self.rotated(stream, a_d))
        o = self.attention(lambda c: qkv.times(z[c]), count, stream.x.shape[1])
        w, sample = self.matrix("o", layer), self.samples["o", layer]
        if "heads" in flags:
            turn = self.head_basis(sample)
            o, w, sample = o @ turn, w @ turn, sample @ turn
        out = Skipper(self, stream, "o", layer, w)
        chosen = out.choose(o, sample)
        out.fit(chosen, inverse_square(middle_d), target=target)
        stream.x = stream.x + self.by_chunk(lambda c: out.times(chosen[c]), count)

    def mlp_half(self, stream: Stream, layer: int, m_d: F32, target: F32, after_d: F32) -> None:
        """The feed-forward layer of a method, arguments as those of `attention_half`."""
        count, weights = len(stream.x), inverse_square(m_d)
        m, w = self.rotated(stream, self.normed(stream.x)), self.rotated(stream, self.matrix("gu", layer))
        dense, sample = self.rotated(stream, m_d), self.rotated(stream, self.samples["gu", layer])
        last = Skipper(self, stream, "down", layer, self.matrix("down", layer))
        if "cats" in stream.method.flags:
            gate_rows, up_rows = np.split(w, 2)
            gate = Skipper(self, stream, "gu", layer, gate_rows)
            z = gate.choose(m, sample)
            gate.fit(z, weights, dense=dense)
            active = self.by_chunk(lambda c: silu(gate.times(z[c])), count)
            d = active * self.by_chunk(lambda c: m[c] @ up_rows.T, count)
            last.size += up_rows.size  # up's rows and down's columns are read together
            scores = np.abs(active) * last.norms, np.abs(silu(sample @ gate_rows.T)) * last.norms
            chosen = last.choose(d, self.samples["down", layer], *scores)
        else:
            both = Skipper(self, stream, "gu", layer, w)
            z = both.choose(m, sample)
            both.fit(z, weights, dense=dense)
            d = self.by_chunk(lambda c: neurons(both.times(z[c])), count)
            chosen = last.choose(d, self.samples["down", layer])
        last.fit(chosen, inverse_square(after_d), target=target)
        stream.x = stream.x + self.by_chunk(lambda c: last.times(chosen[c]), count)

    def dense_neurons(self, m: F32, layer: int) -> F32:
        w = self.matrix("gu", layer)
        return self.by_chunk(lambda c: neurons(m[c] @ w.T), len(m))

    def head_basis(self, o: F32) -> F32:
        """Block-diagonal rotation of the heads' outputs: the principal components of each value head."""
        heads, kv = self.llama.heads, self.llama.kv_heads
        size = o.shape[-1] // heads
        moments = (o * inverse_square(o)[:, None]).T @ o
        turn = np.zeros((o.shape[-1],) * 2, np.float32)
        for group in range(kv):
            members = range(group * heads // kv, (group + 1) * heads // kv)
            blocks = [slice(head * size, (head + 1) * size) for head in members]
            basis = np.linalg.eigh(sum(moments[block, block] for block in blocks))[1]
            for block in blocks:
                turn[block, block] = basis
        return turn

    def study(self, x: F32, every: int = 4) -> None:
        """Samples of the dense inputs, and the principal components of all that is read from the residual stream."""
        total = np.zeros((x.shape[-1],) * 2)
        for layer in range(self.llama.layers):
            a, o, _, m, after = self.dense_layer(x, layer)
            few = [part.reshape(-1, part.shape[-1])[::every] for part in (a, o, m)]
            few.append(self.dense_neurons(few[2][None], layer)[0])
            self.samples.update({(name, layer): part for name, part in zip(INPUTS, few, strict=True)})
            total += few[0].T @ few[0] + few[2].T @ few[2]
            x = after
        self.basis = np.linalg.eigh(total)[1].astype(np.float32)

    def matrix(self, name: str, layer: int) -> F32:
        """All weights that read an input, float32 [out, in]."""
        if name == "qkv":
            return self.stacked(layer, ("attn_q", "attn_k", "attn_v"), "attn_norm")
        if name == "gu":
            return self.stacked(layer, ("ffn_gate", "ffn_up"), "ffn_norm")
        return self.w[f"blk.{layer}." + {"o": "attn_output", "down": "ffn_down"}[name]]

    def profile(self, name: str, layer: int, flags: frozenset[str]) -> Profile:
        """Which share of a token's squared scores is left out, by the fraction that is kept."""
        sample, w = self.samples[name, layer], self.matrix(name, layer)
        turn = self.head_basis(sample) if name == "o" and "heads" in flags else None
        if name in ("qkv", "gu") and "rotate" in flags:
            turn = self.basis
        if turn is not None:
            sample, w = sample @ turn, w @ turn
        energy = np.square(sample * np.linalg.norm(w, axis=0), dtype=np.float64)
        share = energy / energy.sum(-1, keepdims=True)
        levels = np.arange(1, 21) / 20
        if "threshold" in flags:
            below = np.cumsum(share.ravel()[np.argsort(energy, axis=None)]) / len(share)
        else:
            below = np.cumsum(np.sort(share, axis=-1).mean(0))
        dropped = np.array([below[min(round((1 - keep) * below.size), below.size - 1)] for keep in levels])
        dropped[-1] = 0.0
        return Profile(f"{name}@{layer}", layer, name, w.size, levels, np.zeros(20), dropped)

    def score(self, dense: F32, streams: Sequence[Stream], windows: npt.NDArray[np.int32]) -> list[F64]:
        """Adds to nll and kl of the streams; returns the original model's −log p. `dense` [chunks, tokens, width]."""
        head = self.w.get("output", self.w["token_embd"])
        half = windows.shape[1] // 2

        def one(chunk: int) -> tuple[list[F64], list[F64]]:
            logs, nll, kl = None, [], []
            for x in (dense[chunk], *(stream.x[stream.calibration + chunk] for stream in streams)):
                last = normed(x[half:-1], self.llama.eps)
                logits = (last * self.w["output_norm"]) @ head.T
                top = logits.max(-1, keepdims=True)
                logits -= top + np.log(np.exp(logits - top).sum(-1, keepdims=True))
                target = windows[chunk, half + 1 :]
                nll.append(-logits[np.arange(len(target)), target].astype(np.float64))
                if logs is None:
                    logs, p = logits, np.exp(logits)
                kl.append((p * (logs - logits)).sum(-1, dtype=np.float64))
            return nll, kl

        found = self.each(one, len(dense))
        for number, stream in enumerate(streams):
            stream.nll = [nll[number + 1] for nll, _ in found]
            stream.kl = [kl[number + 1] for _, kl in found]
        return [nll[0] for nll, _ in found]


def normed(x: F32, eps: np.float32) -> F32:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def silu(x: F32) -> F32:
    return np.asarray(x / (1 + np.exp(-x)))


def neurons(gate_up: F32) -> F32:
    half = gate_up.shape[-1] // 2
    return silu(gate_up[..., :half]) * gate_up[..., half:]


def inverse_square(x: F32) -> F32:
    return np.asarray(1 / np.maximum((x * x).mean(-1), 1e-20), np.float32)
