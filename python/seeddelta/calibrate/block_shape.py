"""What a model's blocks compute, read from its metadata: the one description that calibrate/block.py goes by.

Norms, gates, biases, fused matrices and experts are there when the file has tensors of their names. The rest is here.
llama.cpp's graphs are what is described (src/models of its source, an architecture each).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import NotAvailableError
from ..gguf import names
from ..gguf.source import SourceModel
from .rope import Rope, Stretch

_MATRICES = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp",
    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp",
    "ffn_down_shexp",
)  # fmt: skip
_BIASED = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
_KNOWN = {f"{name}.weight" for name in _MATRICES + _NORMS} | {f"{name}.bias" for name in _BIASED + _NORMS[:2]}
_FACTORS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
_OUTSIDE = {names.EMBEDDING, names.HEAD, "output_norm.weight", "output_norm.bias", _FACTORS, _LONG, _SHORT}
_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class _Family:
    """What is in llama.cpp's code alone.

    `halves`: pairs that are rotated are halves of a head, not neighbors. `window` and `pattern` are those of the
    sliding windows without a key: all but every `pattern`-th block have one (0: none).
    """

    halves: bool = True
    activation: str = "silu"
    layer_norm: bool = False
    embedding_scaled: bool = False
    window: int = 0
    pattern: int = 0
    largest: int = 0  # blocks of the one size whose scores are scaled in another way
    normalized: bool = True  # the weights of the experts that a token uses have the sum 1


_FAMILIES = {
    "llama": _Family(halves=False),
    "mistral3": _Family(halves=False),
    "granite": _Family(halves=False),
    "smollm3": _Family(halves=False),
    "qwen2": _Family(),
    "qwen3": _Family(),
    "qwen2moe": _Family(normalized=False),
    "qwen3moe": _Family(),
    "phi3": _Family(),
    "gemma": _Family(activation="gelu", embedding_scaled=True),
    "gemma2": _Family(activation="gelu", embedding_scaled=True, window=4096, pattern=2, largest=46),
    "gemma3": _Family(activation="gelu", embedding_scaled=True, pattern=6, largest=62),
    "olmo2": _Family(pattern=4),
    "exaone4": _Family(window=4096, pattern=4),
    "starcoder2": _Family(activation="gelu", layer_norm=True),
}
ARCHITECTURES = tuple(_FAMILIES)


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


class _Reader:
    def __init__(self, source: SourceModel) -> None:
        self.source, self.metadata = source, source.metadata
        self.architecture = source.metadata.scalar("general.architecture", str, "")
        if self.architecture not in _FAMILIES:
            raise self.refuse(f"not for {self.architecture or 'a model without an architecture'}")
        self.family = _FAMILIES[self.architecture]
        self._check_tensors()

    def refuse(self, what: str) -> NotAvailableError:
        return NotAvailableError(
            f"{self.source.path}: gradients are available for {', '.join(ARCHITECTURES)} of the usual form, {what}; "
            "go on without them"
        )

    def _check_tensors(self) -> None:
        for name in self.source.tensors:
            part = name.split(".", 2)
            known = part[2] in _KNOWN if part[0] == "blk" and len(part) == 3 else name in _OUTSIDE
            weight = f"{name.removesuffix('.bias')}.weight"
            if not known or (name.endswith(".bias") and weight not in self.source.tensors):
                raise self.refuse(f"which has no {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float | None = None) -> float:
        key = f"{self.architecture}.{name}"
        values = np.unique(np.atleast_1d(self.metadata[key] if default is None else self.metadata.get(key, default)))
        if len(values) != 1 or values.dtype.kind not in "iuf":
            raise self.refuse(f"in which {key} is one number, the same for all layers")
        return float(values[0])

    def model(self, ctx: int) -> ModelShape:
        layers, n_embd = int(self.number("block_count")), int(self.number("embedding_length"))
        granite = self.architecture == "granite"
        embedding_scale = math.sqrt(n_embd) if self.family.embedding_scaled else 1.0
        return ModelShape(
            self._blocks(layers, n_embd, ctx),
            n_embd,
            (granite and self.number("embedding_scale", 0)) or embedding_scale,
            1 / self.number("logit_scale") if granite else 1.0,
            self._cap("final_logit_softcapping", gemma2=30.0, gemma3=0.0),
        )

    def _cap(self, name: str, **defaults: float) -> float:
        """0 in architectures without the key; others have a default."""
        return self.number(name, defaults[self.architecture]) if self.architecture in defaults else 0.0

    def _blocks(self, layers: int, n_embd: int, ctx: int) -> tuple[BlockShape, ...]:
        heads = int(self.number("attention.head_count"))
        kv_heads = int(self.number("attention.head_count_kv", heads))
        head = int(self.number("attention.key_length", n_embd // heads))
        if self.number("attention.value_length", n_embd // heads) != head or head % 2:
            raise self.refuse("in which heads of keys and values have the same, even size")
        if self.number("expert_group_count", 0) > 1:
            raise self.refuse("without groups of experts")
        if self.number("attention.temperature_scale", 0) and ctx > self._original_ctx():
            raise self.refuse(f"whose scores do not depend on the position in {ctx} tokens")
        eps = self.number(f"attention.layer_norm_{'' if self.family.layer_norm else 'rms_'}epsilon")
        granite = self.architecture == "granite"
        scale = head**-0.5 if layers != self.family.largest else (n_embd // heads) ** -0.5
        windows = self._windows(layers)
        whole, local = self._ropes(head, ctx)
        return tuple(
            BlockShape(
                heads=heads,
                kv_heads=kv_heads,
                head=head,
                rope=(local if window else whole) if self._rotates(layer, layers, window) else None,
                window=window,
                score_scale=(granite and self.number("attention.scale", 0)) or scale,
                score_cap=self._cap("attn_logit_softcapping", gemma2=50.0),
                eps=eps,
                layer_norm=self.family.layer_norm,
                activation=self.family.activation,
                residual_scale=(granite and self.number("residual_scale", 0)) or 1.0,
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
        return self.architecture != "granite" or bool(self.get("rope.scaling.finetuned", True))

    def _original_ctx(self) -> int:
        return int(self.number("rope.scaling.original_context_length", self.number("context_length")))

    def _ropes(self, head: int, ctx: int) -> tuple[Rope, Rope]:
        """Of blocks without and with a window."""
        size, base = int(self.number("rope.dimension_count", head)), self.number("rope.freq_base", 10000.0)
        if size > head or size % 2:
            raise self.refuse("in which an even part of a head is rotated")
        stretch, factors = self._stretch(), self._factors(ctx)
        halves = self.family.halves
        whole = stretch.rope(base, size, factors, halves=halves)
        if self.architecture == "olmo2":
            return whole, Stretch().rope(base, size, factors, halves=halves)
        if self.architecture in ("gemma2", "gemma3"):
            second = self.architecture == "gemma2"
            base = self.number("rope.freq_base_swa", base if second else 10000.0)
            factor = stretch.factor if second else 1.0
            return whole, stretch.rope(base, size, factors, halves=halves, local_factor=factor)
        return whole, whole

    def _factors(self, ctx: int) -> Any:
        name = _LONG if ctx > self._original_ctx() else _SHORT
        name = _FACTORS if _FACTORS in self.source.tensors else name
        return self.source.matrix(name).ravel().astype(np.float64) if name in self.source.tensors else None

    def _stretch(self) -> Stretch:
        kind = self.get("rope.scaling.type", "linear")
        if kind not in _SCALINGS:
            raise self.refuse(f"with rope scaling of {', '.join(_SCALINGS)}, not of {kind}")
        magnitude = self.number("rope.scaling.attn_factor", 1.0)
        if kind == "none":
            return Stretch(magnitude=magnitude)
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 0.0)) or 1.0
        if kind != "yarn":
            return Stretch(factor, magnitude=magnitude)
        if self.architecture != "mistral3":  # others leave these to llama.cpp
            return Stretch(factor, True, magnitude, self._original_ctx())
        keys = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_log_multiplier": 0.0}
        return Stretch(
            factor, True, magnitude, self._original_ctx(),
            *(self.number(f"rope.scaling.{key}", default) for key, default in keys.items()),
        )  # fmt: skip
