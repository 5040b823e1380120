"""Covariance of the inputs with every token weighted by what an error there costs: the gradient of the loss.

    python benchmarks/gradient_covariance.py -m dense.gguf -f wiki.valid.txt --chunks 12 --save 1=fisher.gguf
    seeddelta build -i dense.gguf -o model.seeddelta.gguf --targets all --hessian fisher.gguf

For a matrix with inputs x_t and outputs y_t the divergence of the next token is, for small errors E, about
½ Σ_t |g_tᵀ E x_t|² with g_t = ∂loss/∂y_t. With the directions of g_t left out that is tr(E H Eᵀ) for
H = Σ_t |g_t|² x_t x_tᵀ: Fisher information with one factor for all outputs. `--save POWER=FILE` writes
Σ_t (|g_t|² |x_t|²)^POWER x̂_t x̂_tᵀ with x̂ = x / |x|: 1 is H, 0 the weighting of `seeddelta imatrix`. The loss is
that of tokens drawn from the model's own prediction (`--labels model`), whose expected gradient squares are the Fisher
information, or of those of the text.

A llama in NumPy, forwards and backwards: matrices named as llama.cpp does, without biases or rope factors. Every matrix
has weights of its own, so nothing is shared: the file is larger than that of `seeddelta imatrix`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from seeddelta.evaluate.scoring import bos_token, plan_chunks, read_text, tokenize
from seeddelta.gguf.source import file_sha256, open_source
from seeddelta.imatrix import write_covariance
from seeddelta.imatrix.capture import Capture
from tqdm.auto import tqdm

F32 = npt.NDArray[np.float32]
Seen = Callable[[str, F32, F32], None]


class Llama:
    """The weights of a GGUF of the architecture llama, dequantised. `logits` keeps what `backward` needs."""

    def __init__(self, path: Path) -> None:
        source = open_source(path)
        self.w: dict[str, F32] = {}
        for name, info in source.tensors.items():
            self.w[name.removesuffix(".weight")] = source.matrix(name).reshape(info.shape)
        keys = source.metadata
        if keys["general.architecture"] != "llama":
            raise SystemExit(f"{path}: the architecture {keys['general.architecture']} is not llama")
        self.layers = int(keys["llama.block_count"])
        self.heads = int(keys["llama.attention.head_count"])
        self.kv_heads = int(keys["llama.attention.head_count_kv"])
        self.eps = np.float32(keys["llama.attention.layer_norm_rms_epsilon"])
        self.base = float(keys.get("llama.rope.freq_base", 10000.0))
        self.kept: list[Any] = []

    def logits(self, tokens: npt.NDArray[np.integer[Any]]) -> F32:
        """Logits of all tokens of one text, float32 [tokens, n_vocab]."""
        n, w = len(tokens), self.w
        x = w["token_embd"][tokens]
        size = w["blk.0.attn_q"].shape[0] // self.heads
        angle = np.arange(n)[:, None] * self.base ** (-np.arange(0, size, 2) / size)
        self.turn = np.exp(1j * angle).astype(np.complex64)[:, None, :]
        hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        self.kept = []
        for layer in range(self.layers):
            at = f"blk.{layer}."
            a, norm_a = self._norm(x, w[at + "attn_norm"])
            q = _rotate((a @ w[at + "attn_q"].T).reshape(n, self.heads, size), self.turn)
            k = _rotate((a @ w[at + "attn_k"].T).reshape(n, self.kv_heads, size), self.turn)
            v = (a @ w[at + "attn_v"].T).reshape(n, self.kv_heads, size)
            # [kv head, head of its group, token, ...]
            q, k, v = (np.moveaxis(part.reshape(n, self.kv_heads, -1, size), 0, 2) for part in (q, k, v))
            p = _softmax(q @ k.swapaxes(-1, -2) / np.float32(size**0.5) + hidden)
            o = np.moveaxis(p @ v, 2, 0).reshape(n, -1)
            x = x + o @ w[at + "attn_output"].T
            m, norm_m = self._norm(x, w[at + "ffn_norm"])
            gate, up = m @ w[at + "ffn_gate"].T, m @ w[at + "ffn_up"].T
            sigmoid = 1 / (1 + np.exp(-gate))
            d = gate * sigmoid * up
            x = x + d @ w[at + "ffn_down"].T
            self.kept.append((a, norm_a, q, k, v, p, o, m, norm_m, gate, up, sigmoid, d))
        last, self.norm_last = self._norm(x, w["output_norm"])
        return np.asarray(last @ self._head.T)

    def backward(self, gradient: F32, seen: Seen) -> None:
        """Take ∂loss/∂logits back; `seen(matrix, x, ∂loss/∂y)` for every matrix of the blocks, float32 [tokens, …]."""
        n, w = len(gradient), self.w
        dx = _norm_back(gradient @ self._head, self.norm_last)
        for layer in reversed(range(self.layers)):
            at = f"blk.{layer}."
            a, norm_a, q, k, v, p, o, m, norm_m, gate, up, sigmoid, d = self.kept.pop()

            def back(kind: str, x: F32, dy: F32, at: str = at) -> F32:
                seen(f"{at}{kind}.weight", x, dy)
                return np.asarray(dy @ w[at + kind])

            dd = back("ffn_down", d, dx)
            d_gate = dd * up * sigmoid * (1 + gate * (1 - sigmoid))
            dx = dx + _norm_back(back("ffn_gate", m, d_gate) + back("ffn_up", m, dd * gate * sigmoid), norm_m)
            do = np.moveaxis(back("attn_output", o, dx).reshape(n, *v.shape[:1], -1, v.shape[-1]), 0, 2)
            dp = do @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.float32(v.shape[-1] ** 0.5)
            dv = (p.swapaxes(-1, -2) @ do).sum(1, keepdims=True)
            dk = (ds.swapaxes(-1, -2) @ q).sum(1, keepdims=True)
            dq, dk, dv = (np.moveaxis(g, 2, 0).reshape(n, -1, v.shape[-1]) for g in (ds @ k, dk, dv))
            da = back("attn_q", a, _rotate(dq, self.turn.conj()).reshape(n, -1))
            da = da + back("attn_k", a, _rotate(dk, self.turn.conj()).reshape(n, -1))
            da = da + back("attn_v", a, dv.reshape(n, -1))
            dx = dx + _norm_back(da, norm_a)

    @property
    def _head(self) -> F32:
        return self.w.get("output", self.w["token_embd"])

    def _norm(self, x: F32, weight: F32) -> tuple[F32, tuple[F32, F32, F32]]:
        r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return x * r * weight, (x, r, weight)


def _norm_back(dy: F32, kept: tuple[F32, F32, F32]) -> F32:
    x, r, weight = kept
    g = dy * weight
    return np.asarray(r * (g - x * r * r * (g * x).mean(-1, keepdims=True)), np.float32)


def _rotate(x: F32, turn: npt.NDArray[np.complex64]) -> F32:
    """Neighbours are pairs: float32 [tokens, heads, size], complex64 [tokens, 1, size / 2]."""
    return (np.ascontiguousarray(x, np.float32).view(np.complex64) * turn).view(np.float32)


def _softmax(x: F32) -> F32:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


class WeightedSums:
    """Sums of x̂ x̂ᵀ by matrix with the weights (|g|² |x|²)^power; in the form that `write_covariance` takes."""

    def __init__(self, power: float) -> None:
        self.power = power
        self.sums: dict[str, F32] = {}

    def add(self, name: str, x: F32, gradient: F32) -> None:
        x2, g2 = ((v * v).sum(-1, keepdims=True, dtype=np.float64) for v in (x, gradient))
        weights = np.divide((x2 * g2) ** self.power, x2, out=np.zeros_like(x2), where=x2 > 0)
        part = (x * weights.astype(np.float32)).T @ x
        self.sums[name] = self.sums[name] + part if name in self.sums else part

    def covariance(self, name: str) -> F32:
        """Symmetric, with the mean diagonal 1."""
        h = self.sums[name]
        return np.asarray((h + h.T) / (2 * np.diagonal(h).mean(dtype=np.float64)), np.float32)

    def square(self, name: str) -> npt.NDArray[np.float64]:
        return np.diagonal(self.covariance(name)).astype(np.float64)

    def norm_square(self, name: str) -> npt.NDArray[np.float64]:
        return self.square(name)[None]

    def tokens(self, name: str) -> int:
        return 1


def loss_gradient(logits: F32, labels: npt.NDArray[np.integer[Any]]) -> F32:
    """∂/∂logits of the sum of −log p(label), float32 [tokens, n_vocab]."""
    gradient = _softmax(logits)
    gradient[np.arange(len(labels)), labels] -= 1
    return gradient


def drawn(logits: F32, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """A token for each position from the model's own prediction (Gumbel's trick)."""
    return np.asarray((logits - np.log(-np.log(random.random(logits.shape, np.float32) + 1e-12))).argmax(-1), np.int64)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="dense GGUF of the architecture llama")
    parser.add_argument("-f", "--file", type=Path, required=True, help="calibration text")
    parser.add_argument("--save", action="append", required=True, metavar="POWER=FILE", help="may be given often")
    parser.add_argument("--chunks", type=int, default=12, help="chunks of the text (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument("--labels", choices=("model", "text"), default="model", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn labels (default: %(default)s)")
    options = parser.parse_args(arguments)
    import llama_cpp

    tokenizer = llama_cpp.Llama(str(options.model), vocab_only=True, verbose=False)
    tokens, bos = tokenize(tokenizer, read_text(options.file)), bos_token(tokenizer)
    tokenizer.close()
    chunks = plan_chunks(len(tokens), options.ctx, options.chunks)
    files = {Path(file): WeightedSums(float(power)) for power, _, file in (s.partition("=") for s in options.save)}
    model, random, loss = Llama(options.model), np.random.default_rng(options.seed), []
    for chunk in tqdm(range(chunks), unit="chunk"):
        window = tokens[chunk * options.ctx : (chunk + 1) * options.ctx].copy()
        if bos is not None:
            window[0] = bos
        logits = model.logits(window[:-1])
        top = logits.max(-1, keepdims=True)
        log_norm = top[:, 0] + np.log(np.exp(logits - top).sum(-1))
        loss.append(float((log_norm - logits[np.arange(len(logits)), window[1:]]).mean()))
        labels = drawn(logits, random) if options.labels == "model" else window[1:]

        def seen(name: str, x: F32, dy: F32) -> None:
            for sums in files.values():
                sums.add(name, x, dy)

        model.backward(loss_gradient(logits, labels), seen)
    print(f"perplexity {np.exp(np.mean(loss)):.3f} over {chunks} chunks", file=sys.stderr)
    for file, sums in files.items():
        capture = Capture(
            hook=sums, representatives={name: name for name in sums.sums}, tokens=chunks * (options.ctx - 1),
            chunks=chunks, ctx=options.ctx, skip=0, clip=0.0, model_name=options.model.name,
            model_sha256=file_sha256(options.model), text_name=options.file.name,
            text_sha256=hashlib.sha256(options.file.read_bytes()).hexdigest(), covariance=True,
        )  # fmt: skip
        write_covariance(file, capture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
