"""Norms and products with the tensors of a block, and its MLP and experts, forwards and backwards in NumPy.

Each step gives its result and a function for the way back, which takes ∂loss/∂y and gives ∂loss/∂x.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .block_shape import BlockShape
from .operations import ACTIVATIONS, F32, norm, sigmoid, softmax, softmax_back

# name of a matrix or a norm in its block, ∂loss/∂y and y (without a bias), [tokens, n_out], and x [tokens, n_in]; of
# experts nothing is told
Seen = Callable[[str, F32, F32, F32], object]
Back = Callable[[F32, Seen], F32]


class Tensors:
    """Those of a block. `w` are float32, named without `blk.N.` and `.weight`."""

    def __init__(self, shape: BlockShape, w: dict[str, F32]) -> None:
        self.shape, self.w = shape, w

    def norm(self, name: str, x: F32) -> tuple[F32, Back]:
        if name not in self.w:
            return x, lambda dy, seen: dy
        y, norm_back = norm(x, self.w[name], self.shape.eps, centered=self.shape.layer_norm)

        def back(dy: F32, seen: Seen) -> F32:
            seen(name, dy, y, x)
            return norm_back(dy)

        return self._biased(name, y), back

    def _biased(self, name: str, y: F32) -> F32:
        bias = self.w.get(f"{name}.bias")
        return y if bias is None else y + bias

    def linear(self, name: str, x: F32, expert: int | None = None) -> tuple[F32, Back]:
        weight = self.w[name] if expert is None else self.w[name][expert]
        y = np.asarray(x @ weight.T)

        def back(dy: F32, seen: Seen) -> F32:
            if expert is None:
                seen(name, dy, y, x)
            return np.asarray(dy @ weight)

        return self._biased(name, y), back


class Mlp(Tensors):
    """The MLP of a block, or its experts."""

    def forward(self, x: F32) -> tuple[F32, Back]:
        if "ffn_gate_inp" not in self.w:
            return self._gated(x)
        y, experts_back = self._experts(x)
        if "ffn_up_shexp" not in self.w:
            return y, experts_back
        shared, shared_back = self._shared(x)
        return y + shared, lambda dy, seen: experts_back(dy, seen) + shared_back(dy, seen)

    def _gated(self, x: F32, suffix: str = "", expert: int | None = None) -> tuple[F32, Back]:
        """The MLP, or that of an expert: down(activation(gate) · up), or without a gate."""
        gate, up, down = (f"ffn_{name}{suffix}" for name in ("gate", "up", "down"))
        activation = ACTIVATIONS[self.shape.activation]
        u, up_back = self.linear(up, x, expert)
        if gate in self.w:
            g, gate_back = self.linear(gate, x, expert)
        else:
            width = self.w[down].shape[-1]
            g, u = (u[:, :width], u[:, width:]) if u.shape[-1] == 2 * width else (u, np.ones((1, 1), u.dtype))
        act, slope = activation(g)
        y, down_back = self.linear(down, act * u, expert)

        def back(dy: F32, seen: Seen) -> F32:
            dh = down_back(dy, seen)
            dg, du = dh * u * slope, dh * act
            if gate in self.w:
                return gate_back(dg, seen) + up_back(du, seen)
            return up_back(dg if u.shape[-1] == 1 else np.concatenate([dg, du], -1), seen)

        return y, back

    def _shared(self, x: F32) -> tuple[F32, Back]:
        """The expert that all tokens use, with a gate of its own where there is one."""
        y, y_back = self._gated(x, "_shexp")
        gate = self.w.get("ffn_gate_inp_shexp")
        if gate is None:
            return y, y_back
        gate = gate.ravel()
        s = sigmoid(x @ gate)[:, None]

        def back(dy: F32, seen: Seen) -> F32:
            ds = (dy * y).sum(-1, keepdims=True) * s * (1 - s)
            return np.asarray(y_back(s * dy, seen) + ds * gate)

        return s * y, back

    def _experts(self, x: F32) -> tuple[F32, Back]:
        """Σ of the experts that a token uses, by the weights that the router gives them."""
        logits, router_back = self.linear("ffn_gate_inp", x)
        chosen = np.zeros(logits.shape, bool)
        np.put_along_axis(chosen, np.argsort(-logits, -1, kind="stable")[:, : self.shape.used], True, -1)
        normalized = self.shape.normalized
        p = softmax(np.where(chosen, logits, np.asarray(-np.inf, logits.dtype)) if normalized else logits)
        y, runs = np.zeros_like(x), []
        for expert in np.flatnonzero(chosen.any(0)).tolist():
            tokens = np.flatnonzero(chosen[:, expert])
            weight = p[tokens, expert][:, None]
            own, own_back = self._gated(x[tokens], "_exps", expert)
            y[tokens] += weight * own
            runs.append((expert, tokens, weight, own, own_back))

        def back(dy: F32, seen: Seen) -> F32:
            dx, dp = np.zeros_like(x), np.zeros_like(p)
            for expert, tokens, weight, own, own_back in runs:
                dp[tokens, expert] = (dy[tokens] * own).sum(-1)
                dx[tokens] += own_back(weight * dy[tokens], seen)
            return dx + router_back(softmax_back(p, dp), seen)

        return y, back
