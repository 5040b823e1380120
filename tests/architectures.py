"""Tiny models of random weights in many of llama.cpp's architectures, as tables: keys and tensors of each.

What an architecture needs is in llama.cpp's src/models/<name>.cpp. Shapes are NumPy's, rows first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_llama import N_VOCAB, _add_tokenizer
from tiny_models import finish

N, FF, HEADS, KV, HEAD = 128, 192, 4, 2, 32
EXPERTS, USED, FF_EXPERT = 6, 2, 96
D_CONV, STATE, GROUPS, SSM_HEADS, INNER = 4, 32, 1, 8, 2 * N
Tensors = dict[str, np.ndarray[Any, Any]]
Keys = dict[str, Any]


class _Random:
    """Weights of a plausible size; `matrix` is float16, all else float32."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> np.ndarray[Any, Any]:
        return self.rng.normal(0, gain * shape[-1] ** -0.5, shape).astype(np.float16)

    def small(self, *shape: int, size: float = 0.5) -> np.ndarray[Any, Any]:
        return self.rng.normal(0, size, shape).astype(np.float32)

    def norm(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.uniform(0.8, 1.2, shape or (N,)).astype(np.float32)

    def attention(self, *, q: int = HEADS * HEAD, bias: bool = False, norms: bool = False) -> Tensors:
        tensors = {
            "attn_q.weight": self.matrix(q, N),
            "attn_k.weight": self.matrix(KV * HEAD, N),
            "attn_v.weight": self.matrix(KV * HEAD, N),
            "attn_output.weight": self.matrix(N, HEADS * HEAD),
        }
        if bias:
            tensors |= {f"attn_{name}.bias": self.small(len(tensors[f"attn_{name}.weight"])) for name in "qkv"}
        return tensors | (dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), self.norm(HEAD)) if norms else {})

    def mlp(self, width: int = FF, suffix: str = "", *, gate: bool = True, experts: int = 0) -> Tensors:
        stack = (experts,) if experts else ()
        names = {"ffn_gate": (width, N)} if gate else {}
        shapes = names | {"ffn_up": (width, N), "ffn_down": (N, width)}
        return {f"{name}{suffix}.weight": self.matrix(*stack, *shape) for name, shape in shapes.items()}

    def experts(self, *, shared: bool = False) -> Tensors:
        tensors = {"ffn_gate_inp.weight": self.small(EXPERTS, N, size=4 * N**-0.5)}
        tensors |= self.mlp(FF_EXPERT, "_exps", experts=EXPERTS)
        # a token between two experts may go to the other one when activations are rounded, in every llama.cpp
        tensors["ffn_down_exps.weight"] *= np.float16(0.3)
        return tensors | (self.mlp(FF_EXPERT, "_shexp") if shared else {})

    def mamba2(self) -> Tensors:
        width = INNER + 2 * GROUPS * STATE
        return {
            "ssm_in.weight": self.matrix(INNER + width + SSM_HEADS, N),
            "ssm_conv1d.weight": self.small(width, D_CONV),
            "ssm_conv1d.bias": self.small(width, size=0.1),
            "ssm_dt.bias": self.small(SSM_HEADS),
            "ssm_a": -self.rng.uniform(0.5, 4, (SSM_HEADS, 1)).astype(np.float32),
            "ssm_d": self.norm(SSM_HEADS, 1),
            "ssm_norm.weight": self.norm(GROUPS, INNER // GROUPS),
            "ssm_out.weight": self.matrix(N, INNER),
        }

    def delta_net(self, *, split: bool) -> Tensors:
        """Linear attention of qwen3next (`split` False) and qwen35: 2 heads of keys, 4 of values."""
        keys, values = 2 * STATE, 4 * STATE
        mixing = {"ssm_beta.weight": self.matrix(4, N), "ssm_alpha.weight": self.matrix(4, N)}
        return (mixing if split else {"ssm_ba.weight": self.matrix(8, N)}) | {
            "attn_qkv.weight": self.matrix(2 * keys + values, N),
            "attn_gate.weight": self.matrix(values, N),
            "ssm_conv1d.weight": self.small(2 * keys + values, D_CONV),
            "ssm_dt.bias": self.small(4),
            "ssm_a": -self.rng.uniform(0.5, 4, 4).astype(np.float32),
            "ssm_norm.weight": self.norm(STATE),
            "ssm_out.weight": self.matrix(N, values),
        }

    def mla(self) -> Tensors:
        """Keys and values compressed to 64 columns, 32 rotated ones beside them; 4 heads of 32 + 32 and 32."""
        return {
            "attn_q_a.weight": self.matrix(64, N),
            "attn_q_a_norm.weight": self.norm(64),
            "attn_q_b.weight": self.matrix(HEADS * 64, 64),
            "attn_kv_a_mqa.weight": self.matrix(64 + 32, N),
            "attn_kv_a_norm.weight": self.norm(64),
            "attn_k_b.weight": self.matrix(HEADS, 64, 32),
            "attn_v_b.weight": self.matrix(HEADS, 32, 64),
            "attn_output.weight": self.matrix(N, HEADS * 32),
        }

    def nextn(self) -> Tensors:
        norms = dict.fromkeys(("nextn.enorm.weight", "nextn.hnorm.weight"), self.norm())
        return {"nextn.eh_proj.weight": self.matrix(N, 2 * N)} | norms


Blocks = Callable[[_Random], list[Tensors]]
_MOE = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": FF_EXPERT}
_SSM = {"conv_kernel": D_CONV, "state_size": STATE}
_MAMBA = {
    f"ssm.{k}": v for k, v in (_SSM | dict(inner_size=INNER, time_step_rank=SSM_HEADS, group_count=GROUPS)).items()
}
_DELTA = {f"ssm.{k}": v for k, v in (_SSM | dict(inner_size=4 * STATE, time_step_rank=4, group_count=2)).items()}
_POST = ("post_attention_norm.weight", "post_ffw_norm.weight")


def _dense(r: _Random, **attention: bool) -> list[Tensors]:
    return [r.attention(**attention) | r.mlp() for _ in range(2)]


def _gemma(r: _Random, **attention: bool) -> list[Tensors]:
    return [block | {name: r.norm() for name in _POST} for block in _dense(r, **attention)]


def _phi3(r: _Random) -> list[Tensors]:
    return [
        {"attn_qkv.weight": r.matrix((HEADS + 2 * KV) * HEAD, N), "attn_output.weight": r.matrix(N, HEADS * HEAD)}
        | {"ffn_up.weight": r.matrix(2 * FF, N), "ffn_down.weight": r.matrix(N, FF)}
        for _ in range(2)
    ]


def _qwen3next(r: _Random) -> list[Tensors]:
    common = lambda: r.experts(shared=True) | {"ffn_gate_inp_shexp.weight": r.small(N), _POST[0]: r.norm()}  # noqa: E731
    return [r.delta_net(split=False) | common(), r.attention(q=2 * HEADS * HEAD, norms=True) | common()]


def _qwen35(r: _Random) -> list[Tensors]:
    full = lambda: r.attention(q=2 * HEADS * HEAD, norms=True) | r.mlp() | {_POST[0]: r.norm()}  # noqa: E731
    return [r.delta_net(split=True) | r.mlp() | {_POST[0]: r.norm()}, full(), full() | r.nextn()]


def _glm4moe(r: _Random) -> list[Tensors]:
    def block(rest: Tensors) -> Tensors:
        return r.attention(bias=True) | rest | {_POST[0]: r.norm()}

    def experts() -> Tensors:
        return r.experts(shared=True) | {"exp_probs_b.bias": r.small(EXPERTS, size=0.1)}

    return [block(r.mlp()), block(experts()), block(experts()) | r.nextn()]


def _gpt_oss(r: _Random) -> list[Tensors]:
    def block() -> Tensors:
        tensors = r.attention() | r.experts()
        biases = {"ffn_gate_inp": (EXPERTS,), "attn_output": (N,), "ffn_gate_exps": (EXPERTS, FF_EXPERT)}
        biases |= {"ffn_up_exps": (EXPERTS, FF_EXPERT), "ffn_down_exps": (EXPERTS, N)}
        tensors |= {f"{name}.bias": r.small(*shape, size=0.1) for name, shape in biases.items()}
        return tensors | {"attn_sinks.weight": r.small(HEADS), _POST[0]: r.norm()}

    return [block(), block()]


def _gemma3n(r: _Random) -> list[Tensors]:
    """22 layers: the last two have keys and values that llama.cpp never uses. Widths of the small parts are its own.

    Blocks add little to what passes them: with norms of 1 behind them the rounding of activations alone, in stock
    llama.cpp, grows to a divergence of 0.3 in 22 layers.
    """
    altup = {"altup_correct_coef": (4, 4), "altup_predict_coef": (16, 4), "altup_router": (4, N)}
    small = {"inp_gate": (256, N), "proj": (N, 256), "laurel_l": (64, N), "laurel_r": (N, 64)}
    norms = (*_POST, "post_norm.weight", "altup_router_norm.weight", "laurel_post_norm.weight")
    return [
        r.attention(norms=True)
        | r.mlp()
        | {f"{name}.weight": r.matrix(*shape) for name, shape in small.items()}
        | {f"{name}.weight": r.small(*shape, size=0.05) for name, shape in altup.items()}
        | {name: (1.0 if "router" in name else 0.3) * r.norm() for name in norms}
        | {"altup_correct_scale.weight": r.norm()}
        for _ in range(22)
    ]


def _gemma3n_outside(r: _Random) -> Tensors:
    stack = {name: r.matrix(3, N, N) for name in ("altup_proj.weight", "altup_unembd_proj.weight")}
    return stack | {
        "per_layer_token_embd.weight": r.matrix(N_VOCAB, 256 * 22),
        "per_layer_model_proj.weight": r.matrix(256 * 22, N),
        "per_layer_proj_norm.weight": r.norm(256),
    }


def _hybrid(r: _Random) -> list[Tensors]:
    return [r.mamba2() | r.mlp(), r.attention() | r.mlp()]


def _lfm2(r: _Random) -> list[Tensors]:
    convolution = {
        "shortconv.conv.weight": r.small(N, 3),
        "shortconv.in_proj.weight": r.matrix(3 * N, N),
        "shortconv.out_proj.weight": r.matrix(N, N),
    }
    return [convolution | r.mlp(), r.attention(norms=True) | r.mlp()]


def _nemotron(r: _Random) -> list[Tensors]:
    biases = ("attn_norm.bias", "ffn_norm.bias")
    return [r.attention() | r.mlp(gate=False) | {name: r.small(N, size=0.1) for name in biases} for _ in range(2)]


_MLA_KEYS = {
    "attention.head_count_kv": 1, "attention.key_length": 96, "attention.value_length": 64,
    "attention.key_length_mla": 64, "attention.value_length_mla": 32, "rope.dimension_count": 32,
    "attention.q_lora_rank": 64, "attention.kv_lora_rank": 64, "leading_dense_block_count": 1,
    "expert_shared_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip
# name -> keys beyond the common ones, tensors of the layers
ARCHITECTURES: dict[str, tuple[Keys, Blocks]] = {
    "llama": ({}, _dense),
    "llama4": (
        _MOE | {"interleave_moe_layer_step": 2},
        lambda r: 2 * [r.attention() | r.mlp(), r.attention() | r.experts(shared=True)],
    ),
    "qwen2": ({}, lambda r: _dense(r, bias=True)),
    "qwen3": ({}, lambda r: _dense(r, norms=True)),
    "qwen3moe": (_MOE, lambda r: [r.attention(norms=True) | r.experts() for _ in range(2)]),
    "qwen3next": (
        _MOE | _DELTA | {"full_attention_interval": 2, "expert_shared_feed_forward_length": FF_EXPERT},
        _qwen3next,
    ),
    "qwen35": (
        _DELTA | {"full_attention_interval": 2, "rope.dimension_sections": [8, 4, 4, 0], "nextn_predict_layers": 1},
        _qwen35,
    ),
    "gemma2": (
        {"attn_logit_softcapping": 30.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 24},
        _gemma,
    ),
    "gemma3": (
        {"attention.sliding_window": 24, "attention.sliding_window_pattern": 2},
        lambda r: _gemma(r, norms=True),
    ),
    "gemma3n": ({"attention.sliding_window": 24}, _gemma3n),
    "phi3": ({}, _phi3),
    "deepseek2": (_MOE | _MLA_KEYS, lambda r: [r.mla() | r.mlp(), r.mla() | r.experts(shared=True)]),
    "glm4moe": (
        _MOE | {"expert_shared_count": 1, "leading_dense_block_count": 1, "nextn_predict_layers": 1},
        _glm4moe,
    ),
    "gpt-oss": (_MOE | {"attention.sliding_window": 24}, _gpt_oss),
    "granitehybrid": (_MAMBA | {"attention.head_count_kv": [0, KV]}, _hybrid),
    "falcon-h1": (_MAMBA, lambda r: [r.mamba2() | r.attention() | r.mlp() for _ in range(2)]),
    "lfm2": ({"shortconv.l_cache": 3, "attention.head_count_kv": [0, KV]}, _lfm2),
    "mamba2": (
        _MAMBA | {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0},
        lambda r: [r.mamba2() for _ in range(2)],
    ),
    "nemotron": ({"attention.layer_norm_epsilon": 1e-5}, _nemotron),
    "arcee": ({}, lambda r: [r.attention() | r.mlp(gate=False) for _ in range(2)]),
}
_UNTIED = {"nemotron", "gpt-oss", "phi3", "deepseek2"}
_NO_FFN_NORM = {"qwen3next", "qwen35", "glm4moe", "gpt-oss", "mamba2"}


def _add_zeros(tensors: Tensors) -> None:
    """Of a model with a ReLU: about 85% of the inputs of ffn_down become 0. One of the hidden states is large, the same
    for every token and written by no layer, and every row of ffn_up has it with a negative weight."""
    embedding = tensors["token_embd.weight"]
    embedding *= np.float16(N**0.5)
    embedding[:, 0] = 16
    for name, tensor in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensor[0] = 0
        elif name.endswith("ffn_up.weight"):
            tensor[:, 0] = -0.11


def write_architecture(path: Path, tokenizer_of: Path, name: str, seed: int = 0, *, zeros: bool = False) -> Path:
    """A model of one of ARCHITECTURES, F16, two layers (and what the architecture has beside them). `zeros`: see
    _add_zeros."""
    keys, make = ARCHITECTURES[name]
    random = _Random(seed)
    blocks = make(random)
    tensors: Tensors = {"token_embd.weight": random.matrix(N_VOCAB, N)}
    tensors["token_embd_norm.weight" if name == "lfm2" else "output_norm.weight"] = random.norm()
    if name == "nemotron":
        tensors["output_norm.bias"] = random.small(N, size=0.1)
    if name in _UNTIED:
        tensors["output.weight"] = random.matrix(N_VOCAB, N)
    if name == "gemma3n":
        tensors |= _gemma3n_outside(random)
    ffn_norm = "ffn_norm" if name == "falcon-h1" else "ffn_norm.weight"
    for layer, block in enumerate(blocks):
        norms = {"attn_norm.weight": random.norm()} | ({} if name in _NO_FFN_NORM else {ffn_norm: random.norm()})
        tensors |= {f"blk.{layer}.{key}": tensor for key, tensor in (norms | block).items()}
    if zeros:
        _add_zeros(tensors)
    common: Keys = {
        "context_length": 512, "embedding_length": N, "block_count": len(blocks), "feed_forward_length": FF,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
    }  # fmt: skip
    return _write(path, name, tokenizer_of, common | keys, tensors)


def _write(
    path: Path, name: str, tokenizer_of: Path, keys: Keys, tensors: Tensors, token_types: int | None = None
) -> Path:
    writer = gguf.GGUFWriter(path, name)
    if token_types is not None:
        writer.add_token_type_count(token_types)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
           list: writer.add_array}  # fmt: skip
    for key, value in keys.items():
        add[type(value)](f"{name}.{key}", value)
    _add_tokenizer(writer, tokenizer_of)
    for key, tensor in tensors.items():
        writer.add_tensor(key, tensor)
    finish(writer)
    return path
