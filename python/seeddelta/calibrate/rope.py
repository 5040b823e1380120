"""Rotation of queries and keys by their positions, with llama.cpp's ways to stretch it over longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Turns = npt.NDArray[np.complexfloating]


@dataclass(frozen=True)
class Rope:
    """`frequency` float64 [pairs]: radians a position of each pair, of the first 2 · pairs numbers of a head. Pairs are
    the `halves` of these, or neighbors. What is rotated is multiplied by `scale`."""

    frequency: F64
    halves: bool
    scale: float = 1.0

    def turns(self, x: F32) -> Turns:
        """Rotations of the positions of [tokens, heads, size], complex [tokens, 1, pairs], in its precision."""
        angle = np.arange(len(x))[:, None] * self.frequency
        turn = self.scale * np.exp(1j * angle)
        return np.asarray(turn[:, None, :], np.result_type(x.dtype, np.complex64))

    def rotate(self, x: F32, turns: Turns) -> F32:
        """[tokens, heads, size] rotated; by the conjugate of `turns` for the way back."""
        pairs = len(self.frequency)
        turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if self.halves:
            y = (turned[..., :pairs] + 1j * turned[..., pairs:]) * turns
            return np.concatenate([y.real, y.imag, rest], -1)
        y = (np.ascontiguousarray(turned).view(turns.dtype) * turns).view(x.dtype)
        return np.asarray(np.concatenate([y, rest], -1) if rest.shape[-1] else y)


@dataclass(frozen=True)
class Stretch:
    """How a model's rotations are stretched: by `factor`, as YaRN does where `yarn`, and with `magnitude`.

    `ctx` is the context before that, `fast` and `slow` are the turns in it between which YaRN blends, `log_mul` is its
    factor of the magnitude.
    """

    factor: float = 1.0
    yarn: bool = False
    magnitude: float = 1.0
    ctx: int = 0
    fast: float = 32.0
    slow: float = 1.0
    log_mul: float = 0.0

    def rope(self, base: float, size: int, factors: F64 | None, *, halves: bool, local_factor: float = 0.0) -> Rope:
        """The rotation of `size` numbers of a head; `local_factor` is used in the place of the factor."""
        factor = local_factor or self.factor
        frequency = base ** (-np.arange(0, size, 2) / size)
        if factors is not None:
            frequency = frequency / factors
        if not self.yarn:
            return Rope(frequency / factor, halves, self.magnitude)
        first, last = (
            size * math.log(self.ctx / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (self.fast, self.slow)
        )
        low, high = max(0.0, math.floor(first)), min(size - 1.0, math.ceil(last))
        kept = 1 - np.clip((np.arange(size // 2) - low) / max(0.001, high - low), 0, 1)
        frequency = frequency * (kept + (1 - kept) / factor)
        magnitude = _magnitude(factor) / _magnitude(self.factor, self.log_mul)
        return Rope(frequency, halves, self.magnitude * magnitude)


def _magnitude(factor: float, multiplier: float = 1.0) -> float:
    return 1 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0
