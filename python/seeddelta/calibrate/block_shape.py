"""What a model's blocks compute, read from its metadata: the one description that calibrate/block.py goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..gguf.source import SourceModel
from .rope import Rope
from .rope_metadata import RopeMetadata


@dataclass(frozen=True)
class BlockShape:
    """What one block computes, beside what its tensors tell.

    Scores are multiplied by `score_scale` and go through cap · tanh(score / cap) where `score_cap` is not 0. A token
    sees `window` tokens with itself (0: all before it). What a block adds is multiplied by `residual_scale`. Of experts
    a token uses `used`, with weights of the sum 1 where they are `normalized`.
    """

    heads: int
    kv_heads: int
    head: int
    rope: Rope | None
    window: int
    score_scale: float
    score_cap: float
    eps: float
    layer_norm: bool
    activation: str
    residual_scale: float
    used: int
    normalized: bool


@dataclass(frozen=True)
class ModelShape:
    """What a model computes. Embeddings are multiplied by `embedding_scale`, logits by `logit_scale`; these go through
    cap · tanh(logit / cap) where `logit_cap` is not 0."""

    blocks: tuple[BlockShape, ...]
    n_embd: int
    embedding_scale: float
    logit_scale: float
    logit_cap: float

    @property
    def layers(self) -> int:
        return len(self.blocks)


def model_shape(source: SourceModel, ctx: int) -> ModelShape:
    """Shape of a model for contexts of `ctx` tokens.

    Raises NotAvailableError for a model that is computed in another way.
    """
    return _Reader(source).model(ctx)


class _Reader(RopeMetadata):
    def model(self, ctx: int) -> ModelShape:
        layers, n_embd = int(self.number("block_count")), int(self.number("embedding_length"))
        embedding_scale = math.sqrt(n_embd) if self.family.embedding_scaled else 1.0
        return ModelShape(
            self._blocks(layers, n_embd, ctx),
            n_embd,
            self._scale("embedding_scale") or embedding_scale,
            1 / (self._scale("logit_scale") or 1.0),
            self._cap("final_logit_softcapping", gemma2=30.0, gemma3=0.0),
        )

    def _scale(self, name: str) -> float:
        """0 without one."""
        return self.number(name, 0.0) if self.family.scaled else 0.0

    def _cap(self, name: str, **defaults: float) -> float:
        """0 in architectures without the key; others have a default."""
        return self.number(name, defaults[self.architecture]) if self.architecture in defaults else 0.0

    def _blocks(self, layers: int, n_embd: int, ctx: int) -> tuple[BlockShape, ...]:
        heads = int(self.number("attention.head_count"))
        kv_heads = int(self.number("attention.head_count_kv", heads))
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise self.refuse("in which some heads share keys and values")
        head = int(self.number("attention.key_length", n_embd // heads))
        if self.number("attention.value_length", n_embd // heads) != head or head % 2:
            raise self.refuse("in which heads of keys and values have the same, even size")
        if self.number("expert_group_count", 0) > 1:
            raise self.refuse("without groups of experts")
        if self.number("attention.temperature_scale", 0) and ctx > self.original_ctx():
            raise self.refuse(f"whose scores do not depend on the position in {ctx} tokens")
        eps = self.number(f"attention.layer_norm_{'' if self.family.layer_norm else 'rms_'}epsilon")
        scale = head**-0.5 if layers != self.family.largest else (n_embd // heads) ** -0.5
        windows = self._windows(layers)
        whole, local = self.ropes(head, ctx)
        return tuple(
            BlockShape(
                heads=heads,
                kv_heads=kv_heads,
                head=head,
                rope=(local if window else whole) if self._rotates(layer, layers, window) else None,
                window=window,
                score_scale=self._scale("attention.scale") or scale,
                score_cap=self._cap("attn_logit_softcapping", gemma2=50.0),
                eps=eps,
                layer_norm=self.family.layer_norm,
                activation=self.family.activation,
                residual_scale=self._scale("residual_scale") or 1.0,
                used=int(self.number("expert_used_count", 0)),
                normalized=self.family.normalized,
            )
            for layer, window in enumerate(windows)
        )

    def _windows(self, layers: int) -> list[int]:
        """The window of each block, 0 for none."""
        window = int(self.number("attention.sliding_window", self.family.window))
        if not self.family.pattern or not window or (self.architecture == "exaone4" and layers != 64):
            return [0] * layers
        pattern = self.get("attention.sliding_window_pattern", self.family.pattern)
        if isinstance(pattern, (int, float)):
            period = int(pattern)
            return [window if not period or layer % period < period - 1 else 0 for layer in range(layers)]
        if len(pattern) < layers:
            raise self.refuse("in which sliding_window_pattern is of all layers")
        return [window if own else 0 for own in pattern[:layers]]

    def _rotates(self, layer: int, layers: int, window: int) -> bool:
        if self.architecture == "smollm3":
            return (layer + 1) % 4 != 0
        if self.architecture == "exaone4":
            return bool(window) or layers != 64
        return not self.family.scaled or bool(self.get("rope.scaling.finetuned", True))
