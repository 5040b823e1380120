"""Tiny models of random F32 weights in every architecture that gradients are available for, as a table."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from architectures import _write
from tiny_llama import N_VOCAB

N, FF, HEADS, KV, HEAD, WINDOW = 64, 96, 4, 2, 16, 10
EXPERTS, FF_EXPERT, FF_SHARED = 6, 40, 48
SHAPES: dict[str, tuple[int, ...]] = {
    "attn_q": (HEADS * HEAD, N), "attn_k": (KV * HEAD, N), "attn_v": (KV * HEAD, N),
    "attn_qkv": ((HEADS + 2 * KV) * HEAD, N), "attn_output": (N, HEADS * HEAD),
    "ffn_gate": (FF, N), "ffn_up": (FF, N), "ffn_down": (N, FF), "ffn_gate_inp": (EXPERTS, N),
    "ffn_gate_exps": (EXPERTS, FF_EXPERT, N), "ffn_up_exps": (EXPERTS, FF_EXPERT, N),
    "ffn_down_exps": (EXPERTS, N, FF_EXPERT), "ffn_gate_inp_shexp": (N,), "ffn_gate_shexp": (FF_SHARED, N),
    "ffn_up_shexp": (FF_SHARED, N), "ffn_down_shexp": (N, FF_SHARED), "attn_norm": (N,), "ffn_norm": (N,),
    "post_attention_norm": (N,), "post_ffw_norm": (N,), "attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,),
}  # fmt: skip
_QKV, _NORMS, _MLP = "attn_q attn_k attn_v attn_output", "attn_norm ffn_norm", "ffn_gate ffn_up ffn_down"
_DENSE = f"{_QKV} {_NORMS} {_MLP}"
_AFTER, _HEADS = "post_attention_norm post_ffw_norm", "attn_q_norm attn_k_norm"
_EXPERTS = f"{_QKV} {_NORMS} ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"
_QKV_BIASES = "attn_q.bias attn_k.bias attn_v.bias"
_MOE = {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FF_EXPERT}
_SLIDING = {"attention.sliding_window": WINDOW}
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
_EIGHT = {"block_count": 8}
_SECTIONS = {"rope.dimension_sections": [4, 2, 2, 0]}
# name of a case: architecture where it is another, tensors of a block, keys, other shapes
CASES: dict[str, dict[str, Any]] = {
    "llama": {"tensors": _DENSE},
    "llama-biases": {"of": "llama", "tensors": f"{_DENSE} {_QKV_BIASES} attn_output.bias ffn_gate.bias ffn_down.bias"},
    "llama-linear": {"of": "llama", "tensors": _DENSE, "keys": {"rope.scaling.factor": 4.0}},
    "llama-yarn": {"of": "llama", "tensors": _DENSE, "keys": _YARN},
    "llama-factors": {"of": "llama", "tensors": _DENSE, "outside": {"rope_freqs": (HEAD // 2,)}},
    "llama-experts": {
        "of": "llama", "tensors": _EXPERTS, "keys": _MOE | {"feed_forward_length": FF_EXPERT},
    },
    "mistral3": {
        "tensors": _DENSE,
        "keys": _YARN | {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1},
    },
    "granite": {
        "tensors": _DENSE,
        "keys": {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.1},
    },
    "granite-plain": {
        "of": "granite", "tensors": _DENSE, "keys": {"logit_scale": 2.0, "rope.scaling.finetuned": False},
    },
    "smollm3": {"tensors": _DENSE, "keys": _EIGHT},
    "qwen2": {"tensors": f"{_DENSE} {_QKV_BIASES}"},
    "qwen3": {"tensors": f"{_DENSE} {_HEADS}"},
    "qwen2moe": {
        "tensors": f"{_EXPERTS} {_QKV_BIASES} ffn_gate_inp_shexp ffn_gate_shexp ffn_up_shexp ffn_down_shexp",
        "keys": _MOE | {"expert_shared_feed_forward_length": FF_SHARED},
    },
    "qwen3moe": {"tensors": f"{_EXPERTS} {_HEADS}", "keys": _MOE},
    "phi3": {
        "tensors": f"attn_qkv attn_output {_NORMS} ffn_up ffn_down", "shapes": {"ffn_up": (2 * FF, N)},
        "keys": {"rope.dimension_count": 12},
    },
    "phi3-longrope": {
        "of": "phi3", "tensors": f"attn_qkv attn_output {_NORMS} ffn_up ffn_down", "shapes": {"ffn_up": (2 * FF, N)},
        "keys": {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2,
                 "rope.scaling.original_context_length": 256},
        "outside": {"rope_factors_long": (HEAD // 2,), "rope_factors_short": (HEAD // 2,)},
    },
    "gemma": {"tensors": _DENSE},
    "gemma2": {
        "tensors": f"{_DENSE} {_AFTER}",
        "keys": _SLIDING | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    },
    "gemma3": {
        "tensors": f"{_DENSE} {_AFTER} {_HEADS}",
        "keys": _SLIDING | _EIGHT | {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    },
    "olmo2": {
        "tensors": f"{_QKV} {_MLP} {_AFTER} {_HEADS}",
        "shapes": {"attn_q_norm": (HEADS * HEAD,), "attn_k_norm": (KV * HEAD,)},
    },
    "olmo2-window": {
        "of": "olmo2", "tensors": f"{_QKV} {_MLP} {_AFTER} {_HEADS}", "keys": _SLIDING | _EIGHT | _YARN,
        "shapes": {"attn_q_norm": (HEADS * HEAD,), "attn_k_norm": (KV * HEAD,)},
    },
    "exaone4": {"tensors": f"{_QKV} {_MLP} {_AFTER} {_HEADS}", "keys": _SLIDING},
    "exaone4-window": {
        "of": "exaone4", "tensors": f"{_QKV} {_MLP} {_AFTER} {_HEADS}", "keys": _SLIDING | {"block_count": 64},
    },
    "starcoder2": {
        "tensors": f"{_QKV} {_NORMS} ffn_up ffn_down {_QKV_BIASES} attn_output.bias ffn_up.bias ffn_down.bias "
        "attn_norm.bias ffn_norm.bias",
        "keys": {"attention.layer_norm_epsilon": 1e-5}, "outside": {"output_norm.bias": (N,)},
    },
    "qwen3vl": {"tensors": f"{_DENSE} {_HEADS}", "keys": _SECTIONS},
    "qwen3vlmoe": {"tensors": f"{_EXPERTS} {_HEADS}", "keys": _MOE | _SECTIONS},
    "glm4": {
        "tensors": f"{_DENSE.replace('ffn_gate ', '')} {_AFTER} {_QKV_BIASES}", "shapes": {"ffn_up": (2 * FF, N)},
        "keys": {"rope.dimension_count": HEAD // 2},
    },
    "glm4-sections": {
        "of": "glm4", "tensors": f"{_DENSE.replace('ffn_gate ', '')} {_AFTER}", "shapes": {"ffn_up": (2 * FF, N)},
        "keys": {"rope.dimension_count": HEAD // 2, "rope.dimension_sections": [2, 1, 1, 0]},
    },
    "chatglm": {
        "tensors": f"attn_qkv attn_qkv.bias attn_output {_NORMS} ffn_up ffn_down", "shapes": {"ffn_up": (2 * FF, N)},
        "keys": {"rope.dimension_count": HEAD // 2},
    },
    "exaone": {"tensors": _DENSE},
    "internlm2": {"tensors": _DENSE},
    "ernie4_5": {"tensors": _DENSE},
    "olmoe": {
        "tensors": f"{_EXPERTS} {_HEADS}",
        "keys": _MOE | {"feed_forward_length": FF_EXPERT, "attention.head_count_kv": HEADS},
        "shapes": dict.fromkeys(("attn_k", "attn_v"), (HEADS * HEAD, N))
        | dict.fromkeys(("attn_q_norm", "attn_k_norm"), (HEADS * HEAD,)),
    },
    "granitemoe": {
        "tensors": f"{_EXPERTS} ffn_gate_shexp ffn_up_shexp ffn_down_shexp",
        "keys": _MOE | {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention.scale": 0.1,
                        "feed_forward_length": FF_EXPERT, "expert_shared_feed_forward_length": FF_SHARED},
    },
    "arcee": {"tensors": _DENSE.replace("ffn_gate ", "")},
    "nemotron": {
        "tensors": f"{_DENSE.replace('ffn_gate ', '')} attn_norm.bias ffn_norm.bias",
        "keys": {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD // 2},
        "outside": {"output_norm.bias": (N,)},
    },
}  # fmt: skip
_TIED = {"gemma", "gemma2", "gemma3"}


def write_case(name: str, folder: Path, tokenizer_of: Path, more: dict[str, Any] | None = None) -> Path:
    """A model of one of CASES, 2 blocks where it does not say otherwise, with `more` keys."""
    case, random = CASES[name], np.random.default_rng(zlib.crc32(name.encode()))
    architecture, shapes = case.get("of", name), SHAPES | case.get("shapes", {})
    keys: dict[str, Any] = {
        "context_length": 512, "embedding_length": N, "block_count": 2, "feed_forward_length": FF,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
    } | case.get("keys", {}) | (more or {})  # fmt: skip
    outside = {"token_embd": (N_VOCAB, N), "output_norm": (N,)} | case.get("outside", {})
    outside |= {} if architecture in _TIED else {"output": (N_VOCAB, N)}
    tensors = {_full(one): _weights(one, shape, random) for one, shape in outside.items()}
    for layer in range(keys["block_count"]):
        for one in case["tensors"].split():
            shape = shapes[one.removesuffix(".bias")]
            tensors[f"blk.{layer}.{_full(one)}"] = _weights(one, shape[:1] if one.endswith(".bias") else shape, random)
    return _write(folder / f"{name}.gguf", architecture, tokenizer_of, keys, tensors)


def _full(name: str) -> str:
    return name if name.endswith(".bias") else f"{name}.weight"


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if name.endswith(".bias"):
        return random.normal(0, 0.2, shape).astype(np.float32)
    if name.startswith("rope"):
        return random.uniform(1, 4, shape).astype(np.float32)
    if len(shape) == 1 and "norm" in name:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    gain = {"attn_q": 3, "attn_k": 3, "attn_qkv": 2, "ffn_gate_inp": 4}.get(name, 1)  # scores that are not all alike
    return random.normal(0, gain * shape[-1] ** -0.5, shape).astype(np.float32)
