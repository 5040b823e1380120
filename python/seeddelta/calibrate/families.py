"""Architectures whose blocks can be computed in NumPy, and their metadata.

Norms, gates, biases, fused matrices and experts are there when the file has tensors of their names. A Family has what
is in llama.cpp's code alone (src/models of its source, an architecture each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import NotAvailableError
from ..gguf import names
from ..gguf.source import SourceModel

_MATRICES = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp",
    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp",
    "ffn_down_shexp",
)  # fmt: skip
_BIASED = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
_KNOWN = {f"{name}.weight" for name in _MATRICES + _NORMS} | {f"{name}.bias" for name in _BIASED + _NORMS[:2]}
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
_OUTSIDE = {names.EMBEDDING, names.HEAD, "output_norm.weight", "output_norm.bias", FACTORS, LONG, SHORT}


@dataclass(frozen=True)
class Family:
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
    scaled: bool = False  # keys scale the embedding, what blocks add, scores and logits
    normalized: bool = True  # the weights of the experts that a token uses have the sum 1


FAMILIES = {
    **dict.fromkeys(("llama", "mistral3", "smollm3", "internlm2", "ernie4_5", "glm4", "chatglm"), Family(halves=False)),
    **dict.fromkeys(("granite", "granitemoe"), Family(halves=False, scaled=True)),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi3", "exaone"), Family()),
    **dict.fromkeys(("qwen2moe", "olmoe"), Family(normalized=False)),
    "gemma": Family(activation="gelu", embedding_scaled=True),
    "gemma2": Family(activation="gelu", embedding_scaled=True, window=4096, pattern=2, largest=46),
    "gemma3": Family(activation="gelu", embedding_scaled=True, pattern=6, largest=62),
    "olmo2": Family(pattern=4),
    "exaone4": Family(window=4096, pattern=4),
    "starcoder2": Family(activation="gelu", layer_norm=True),
    "arcee": Family(halves=False, activation="relu_sqr"),
    "nemotron": Family(activation="relu_sqr", layer_norm=True),
}
ARCHITECTURES = tuple(FAMILIES)


class Metadata:
    """Metadata of a model of one of ARCHITECTURES. Raises NotAvailableError for another."""

    def __init__(self, source: SourceModel) -> None:
        self.source, self.metadata = source, source.metadata
        self.architecture = source.metadata.scalar("general.architecture", str, "")
        if self.architecture not in FAMILIES:
            raise self.refuse(f"not for {self.architecture or 'a model without an architecture'}")
        self.family = FAMILIES[self.architecture]
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
