"""The end of a model in NumPy: the last norm, the output matrix, and labels that are drawn from the prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..gguf import names
from ..gguf.source import SourceModel
from .block_shape import ModelShape
from .operations import F32, Back, capped, norm, softmax

_NORM, _BIAS = "output_norm.weight", "output_norm.bias"
_SLICE = 64  # tokens whose logits are in memory at a time


@dataclass(frozen=True)
class Head:
    """`norm` and `bias` (or None) are of the last norm, [n_embd], `matrix` is the output matrix [n_vocab, n_embd]."""

    shape: ModelShape
    norm: F32
    bias: F32 | None
    matrix: F32

    def normalized(self, x: F32) -> tuple[F32, Back]:
        """Hidden states [tokens, n_embd] behind the last norm, without its bias."""
        last = self.shape.blocks[-1]
        return norm(x, self.norm, last.eps, centered=last.layer_norm)

    def inputs(self, x: F32) -> F32:
        """What the output matrix is given, [tokens, n_embd], of hidden states."""
        last = self.normalized(x)[0]
        return last if self.bias is None else last + self.bias

    def logits(self, last: F32) -> tuple[F32, Back]:
        """[tokens, n_vocab] of what `normalized` gave."""
        last = last if self.bias is None else last + self.bias
        scale = self.shape.logit_scale
        logits, cap_back = capped(scale * (last @ self.matrix.T), self.shape.logit_cap)
        return logits, lambda dy: scale * (cap_back(dy) @ self.matrix)

    def gradient(self, x: F32, random: np.random.Generator) -> tuple[F32, F32]:
        """∂loss/∂x [tokens, n_embd]: the loss is Σ −log p(label), the labels are drawn from the prediction.

        And the variance p (1 − p) of each token's label, float32 [n_vocab], summed over the tokens.
        """
        last, norm_back = self.normalized(x)
        gradient, variance = np.empty_like(last), np.zeros(len(self.matrix), np.float32)
        for begin in range(0, len(last), _SLICE):
            some = slice(begin, begin + _SLICE)
            logits, logits_back = self.logits(last[some])
            noise = random.random(logits.shape, np.float32)
            label = (logits - np.log(-np.log(noise + np.float32(1e-12)))).argmax(-1)  # Gumbel's trick
            p = softmax(logits)
            variance += (p - p * p).sum(0)
            p[np.arange(len(p)), label] -= 1
            gradient[some] = logits_back(p)
        return norm_back(gradient), variance


def read_head(source: SourceModel, shape: ModelShape) -> Head:
    """The head of an original model."""
    matrix = source.matrix(names.HEAD if names.HEAD in source.tensors else names.EMBEDDING)
    bias = source.matrix(_BIAS).ravel() if _BIAS in source.tensors else None
    return Head(shape, source.matrix(_NORM).ravel(), bias, matrix)
