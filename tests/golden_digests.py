"""What a SeedΔ file decodes to, as SHA-256: the bits of the weights and of a product with inputs that never change."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from seeddelta.gguf.reader import open_seeddelta

N_TOKENS = 5


def activations(n_in: int) -> np.ndarray[Any, Any]:
    """float32 [N_TOKENS, n_in] in [-1, 1), made of integers alone; the last token has one large input."""
    words = (np.arange(1, N_TOKENS * n_in + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)
    x = (words.astype(np.float32) / np.float32(32768) - np.float32(1)).reshape(N_TOKENS, n_in)
    x[-1, n_in // 2] = 1000
    return x


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest()


def digests(path: Path) -> dict[str, dict[str, str]]:
    """By tensor: `weights` of float32 [rows, n_in] and `product` of float32 [experts, N_TOKENS, n_out]."""
    found = {}
    with open_seeddelta(path) as file:
        for name, tensor in file.tensors.items():
            weight = tensor.to_weight()
            x = activations(weight.n_in)
            products = [weight.matmul(x, expert=expert) for expert in range(weight.n_experts)]
            found[name] = {"weights": _digest(weight.dequantize()), "product": _digest(np.stack(products))}
    return found
