"""Norms, activations and softmax in NumPy, each with its derivative, in the precision of what they are given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Back = Callable[[F32], F32]  # ∂loss/∂x from ∂loss/∂y
_GELU = ((2 / np.pi) ** 0.5, 0.044715)


def norm(x: F32, weight: F32, eps: float, *, centered: bool) -> tuple[F32, Back]:
    """x normalized along the last axis and scaled; `centered` subtracts the mean first (LayerNorm, not RMSNorm)."""
    if centered:
        x = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    unit = x * r

    def back(dy: F32) -> F32:
        g = dy * weight
        dx = g - unit * (g * unit).mean(-1, keepdims=True)
        return np.asarray(r * (dx - g.mean(-1, keepdims=True) if centered else dx))

    return np.asarray(unit * weight), back


def sigmoid(x: F32) -> F32:
    """Without overflow for any x."""
    return np.asarray((1 + np.tanh(x / 2)) / 2)


def silu(x: F32) -> tuple[F32, F32]:
    """x · sigmoid(x), and its derivative."""
    s = sigmoid(x)
    return x * s, s * (1 + x * (1 - s))


def gelu(x: F32) -> tuple[F32, F32]:
    """GELU by its approximation with tanh, and its derivative."""
    a, b = _GELU
    square = x * x
    t = np.tanh(a * x * (1 + b * square))
    return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) * (a * (1 + 3 * b * square)) / 2


def relu_sqr(x: F32) -> tuple[F32, F32]:
    """The square of what is above 0, and its derivative."""
    positive = np.maximum(x, 0)
    return positive * positive, 2 * positive


ACTIVATIONS = {"silu": silu, "gelu": gelu, "relu_sqr": relu_sqr}


def capped(x: F32, cap: float) -> tuple[F32, Back]:
    """cap · tanh(x / cap); x itself for a cap of 0."""
    if not cap:
        return x, lambda dy: dy
    t = np.tanh(x / cap)
    return cap * t, lambda dy: dy * (1 - t * t)


def softmax(x: F32) -> F32:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def softmax_back(p: F32, dp: F32) -> F32:
    """∂loss/∂x from the softmax and ∂loss/∂softmax."""
    return np.asarray(p * (dp - (p * dp).sum(-1, keepdims=True)))
