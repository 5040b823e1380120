"""Models of random weights that llama.cpp loads, in several architectures, with the start of SmolLM2's tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, Typed, copied_metadata, write_gguf
from tiny_models import finish

N_EMBD, N_FF, N_LAYERS, N_HEAD, N_KV_HEAD, HEAD = 64, 96, 2, 4, 2, 16
N_EXPERT, N_USED, N_FF_EXPERT = 6, 2, 40  # rows that are no whole tiles
SHORT_LAYERS = 6  # of a real model that is cut; the shorter, the less its parts have to do with each other
N_VOCAB = 512  # the special tokens, all bytes, and the first merges


def write_llama(
    path: Path, tokenizer_of: Path, *, tied: bool = True, seed: int = 0, width: int = N_FF, template: str | None = None
) -> Path:
    """A llama of two layers, F16; `width` is that of its MLP, `template` that of its chats."""
    random = _Random(seed)
    mlp = {"gate": (width, N_EMBD), "up": (width, N_EMBD), "down": (N_EMBD, width)}
    tensors = _model(random, tied, lambda: _attention(random) | _mlp(random, mlp))

    def keys(writer: gguf.GGUFWriter) -> None:
        if template is not None:
            writer.add_chat_template(template)

    return _write(path, "llama", tokenizer_of, tensors, keys, feed_forward=width)


def write_short(path: Path, whole: Path) -> Path:
    """The first SHORT_LAYERS layers of a llama as a model of their own, in its types."""
    source = open_source(whole)
    kept = [
        t for t in source.tensors.values() if not t.name.startswith("blk.") or int(t.name.split(".")[1]) < SHORT_LAYERS
    ]
    metadata = copied_metadata(source.header)
    metadata["llama.block_count"] = Typed(SHORT_LAYERS, gguf.GGUFValueType.UINT32)
    plan = [PlannedTensor(t.name, t.shape, t.type) for t in kept]
    write_gguf(path, metadata, plan, lambda tensor: [source.raw(tensor.name)])
    return path


def write_bert(path: Path, tokenizer_of: Path) -> Path:
    """A bert of two layers: an encoder, which has vectors of texts and no logits."""
    random = _Random(7)

    def norm(name: str) -> Tensors:
        return {f"{name}.weight": random.norm(), f"{name}.bias": np.zeros(N_EMBD, np.float32)}

    tensors = {"token_embd.weight": random.matrix(N_VOCAB, N_EMBD)}
    tensors |= {"token_types.weight": random.matrix(2, N_EMBD).astype(np.float32)}
    tensors |= {"position_embd.weight": random.matrix(256, N_EMBD).astype(np.float32)} | norm("token_embd_norm")
    key = (N_KV_HEAD * HEAD, N_EMBD)
    shapes = {"attn_q": (N_EMBD, N_EMBD), "attn_k": key, "attn_v": key}
    shapes |= {"attn_output": (N_EMBD, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)}
    for layer in range(N_LAYERS):
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = random.matrix(*shape)
            tensors[f"blk.{layer}.{name}.bias"] = np.zeros(shape[0], np.float32)
        tensors |= norm(f"blk.{layer}.attn_output_norm") | norm(f"blk.{layer}.layer_output_norm")

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(2)

    return _write(path, "bert", tokenizer_of, tensors, keys)


def write_qwen(path: Path, tokenizer_of: Path, architecture: str) -> Path:
    """A qwen2 (biases) or a qwen3 (norms of queries and keys) of two layers."""
    random = _Random(6)
    mlp = {"gate": (N_FF, N_EMBD), "up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)}

    def block() -> Tensors:
        tensors = _attention(random) | _mlp(random, mlp)
        if architecture == "qwen2":
            sizes = {"q": N_HEAD, "k": N_KV_HEAD, "v": N_KV_HEAD}
            return tensors | {f"attn_{n}.bias": random.matrix(h * HEAD).astype(np.float32) for n, h in sizes.items()}
        return tensors | {f"attn_{name}_norm": random.norm()[:HEAD] for name in "qk"}

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)

    return _write(path, architecture, tokenizer_of, _model(random, False, block), keys)


def write_phi3(path: Path, tokenizer_of: Path) -> Path:
    """A phi3 of two layers: one matrix for queries, keys and values, and gate and up in one."""
    random = _Random(1)

    def block() -> Tensors:
        qkv = random.matrix((N_HEAD + 2 * N_KV_HEAD) * HEAD, N_EMBD)
        output = {"attn_qkv": qkv, "attn_output": random.matrix(N_EMBD, N_HEAD * HEAD)}
        return output | _mlp(random, {"up": (2 * N_FF, N_EMBD), "down": (N_EMBD, N_FF)})

    return _write(path, "phi3", tokenizer_of, _model(random, False, block))


def write_gemma2(path: Path, tokenizer_of: Path) -> Path:
    """A gemma2 of two layers, the first with a sliding window: softcapped scores, two caches, norms behind blocks."""
    random = _Random(3)
    mlp = {"gate": (N_FF, N_EMBD), "up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)}

    def block() -> Tensors:
        norms = {"post_attention_norm": random.norm(), "post_ffw_norm": random.norm()}
        return {name: 3 * tensor for name, tensor in _attention(random).items()} | _mlp(random, mlp) | norms

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_attn_logit_softcapping(2.0)
        writer.add_final_logit_softcapping(30.0)
        writer.add_sliding_window(24)

    return _write(path, "gemma2", tokenizer_of, _model(random, True, block), keys)


def write_mpt(path: Path, tokenizer_of: Path) -> Path:
    """An mpt of two layers: positions by ALiBi, which the mask brings."""
    random = _Random(4)

    def block() -> Tensors:
        return {
            "attn_qkv": 2 * random.matrix((N_HEAD + 2 * N_KV_HEAD) * HEAD, N_EMBD),
            "attn_output": random.matrix(N_EMBD, N_HEAD * HEAD),
        } | _mlp(random, {"up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)})

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_max_alibi_bias(8.0)
        writer.add_layer_norm_eps(1e-5)

    return _write(path, "mpt", tokenizer_of, _model(random, True, block), keys)


def write_gpt_oss(path: Path, tokenizer_of: Path) -> Path:
    """A gpt-oss of two layers: sinks, which take part in the softmax without a value; a sliding window; experts."""
    random = _Random(5)

    def block() -> Tensors:
        shapes = {"gate": (N_FF_EXPERT, N_EMBD), "up": (N_FF_EXPERT, N_EMBD), "down": (N_EMBD, N_FF_EXPERT)}
        tensors = _attention(random) | {"post_attention_norm": random.norm(), "ffn_gate_inp": random.router()}
        tensors |= {f"ffn_{name}_exps": random.matrix(N_EXPERT, *shape) for name, shape in shapes.items()}
        biases = {f"ffn_{name}_exps": (N_EXPERT, shape[0]) for name, shape in shapes.items()}
        biases |= {f"attn_{name}": (len(tensors[f"attn_{name}"]),) for name in ("q", "k", "v", "output")}
        biases |= {"ffn_gate_inp": (N_EXPERT,)}
        tensors |= {f"{name}.bias": random.matrix(*shape).astype(np.float32) for name, shape in biases.items()}
        return tensors | {"attn_sinks": np.linspace(-2, 4, N_HEAD, dtype=np.float32)}

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_USED)
        writer.add_expert_feed_forward_length(N_FF_EXPERT)
        writer.add_sliding_window(24)

    return _write(path, "gpt-oss", tokenizer_of, _model(random, False, block), keys, N_FF_EXPERT)


def write_experts(path: Path, tokenizer_of: Path, architecture: str) -> Path:
    """A mixture of experts of two layers: llama, or qwen2moe, which has a shared expert, too."""
    random = _Random(2)

    def block() -> Tensors:
        tensors = _attention(random) | {"ffn_norm": random.norm(), "ffn_gate_inp": 4 * random.router()}
        shapes = {"gate": (N_FF_EXPERT, N_EMBD), "up": (N_FF_EXPERT, N_EMBD), "down": (N_EMBD, N_FF_EXPERT)}
        tensors |= {f"ffn_{name}_exps": random.matrix(N_EXPERT, *shape) for name, shape in shapes.items()}
        if architecture == "qwen2moe":
            tensors |= {"ffn_gate_inp_shexp": random.norm()}
            shapes = {"gate": (N_FF, N_EMBD), "up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)}
            tensors |= {f"ffn_{name}_shexp": random.matrix(*shape) for name, shape in shapes.items()}
        return tensors

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_USED)
        writer.add_expert_feed_forward_length(N_FF_EXPERT)
        if architecture == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(N_FF)

    feed_forward = N_FF_EXPERT if architecture == "llama" else N_FF
    return _write(path, architecture, tokenizer_of, _model(random, False, block), keys, feed_forward)


Tensors = dict[str, np.ndarray[Any, Any]]


def _model(random: _Random, tied: bool, block: Callable[[], Tensors]) -> Tensors:
    tensors = random.embedding(tied) | {"output_norm.weight": random.norm()}
    for layer in range(N_LAYERS):
        tensors |= {
            f"blk.{layer}.{name}" + ("" if "." in name else ".weight"): tensor
            for name, tensor in ({"attn_norm": random.norm()} | block()).items()
        }
    return tensors


def _attention(random: _Random) -> Tensors:
    return {
        "attn_q": random.matrix(N_HEAD * HEAD, N_EMBD),
        "attn_k": random.matrix(N_KV_HEAD * HEAD, N_EMBD),
        "attn_v": random.matrix(N_KV_HEAD * HEAD, N_EMBD),
        "attn_output": random.matrix(N_EMBD, N_HEAD * HEAD),
    }


def _mlp(random: _Random, shapes: dict[str, tuple[int, int]]) -> Tensors:
    return {"ffn_norm": random.norm()} | {f"ffn_{name}": random.matrix(*shape) for name, shape in shapes.items()}


class _Random:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float16)

    def norm(self) -> np.ndarray[Any, Any]:
        return self.rng.uniform(0.8, 1.2, N_EMBD).astype(np.float32)

    def router(self) -> np.ndarray[Any, Any]:
        return self.matrix(N_EXPERT, N_EMBD).astype(np.float32)

    def embedding(self, tied: bool) -> dict[str, np.ndarray[Any, Any]]:
        tensors = {"token_embd.weight": self.matrix(N_VOCAB, N_EMBD)}
        return tensors if tied else tensors | {"output.weight": self.matrix(N_VOCAB, N_EMBD)}


def _write(
    path: Path,
    architecture: str,
    tokenizer_of: Path,
    tensors: Tensors,
    keys: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    feed_forward: int = N_FF,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_KV_HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1)
    keys(writer)
    _add_tokenizer(writer, tokenizer_of)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    finish(writer)
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    metadata = _tokenizer(path, N_VOCAB)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])


@functools.cache
def _tokenizer(path: Path, count: int) -> dict[str, Any]:
    """The tokenizer's metadata, of its first tokens; reading all of it takes a fifth of a second."""
    found = {name: value for name, value in read_header(path).metadata.items() if name.startswith("tokenizer.")}
    tokens = found["tokenizer.ggml.tokens"][:count]
    known = set(tokens)
    kinds = [int(kind) for kind in found["tokenizer.ggml.token_type"][:count]]
    merges = [merge for merge in found["tokenizer.ggml.merges"] if merge.replace(" ", "") in known]
    return found | {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges
    }  # fmt: skip
