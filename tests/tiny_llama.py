"""Models of random weights that llama.cpp loads, in several architectures, with the start of SmolLM2's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from seeddelta.gguf.header import read_header

N_EMBD, N_FF, N_LAYERS, N_HEAD, N_KV_HEAD, HEAD = 64, 96, 2, 4, 2, 16
N_VOCAB = 512  # the special tokens, all bytes, and the first merges


def write_llama(path: Path, tokenizer_of: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """A llama of two layers, F16."""
    random = _Random(seed)
    tensors = random.embedding(tied) | {"output_norm.weight": random.norm()}
    for layer in range(N_LAYERS):
        block = {
            "attn_norm": random.norm(),
            "attn_q": random.matrix(N_HEAD * HEAD, N_EMBD),
            "attn_k": random.matrix(N_KV_HEAD * HEAD, N_EMBD),
            "attn_v": random.matrix(N_KV_HEAD * HEAD, N_EMBD),
            "attn_output": random.matrix(N_EMBD, N_HEAD * HEAD),
            "ffn_norm": random.norm(),
            "ffn_gate": random.matrix(N_FF, N_EMBD),
            "ffn_up": random.matrix(N_FF, N_EMBD),
            "ffn_down": random.matrix(N_EMBD, N_FF),
        }
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return _write(path, "llama", tokenizer_of, tensors)


class _Random:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float16)

    def norm(self) -> np.ndarray[Any, Any]:
        return self.rng.uniform(0.8, 1.2, N_EMBD).astype(np.float32)

    def embedding(self, tied: bool) -> dict[str, np.ndarray[Any, Any]]:
        tensors = {"token_embd.weight": self.matrix(N_VOCAB, N_EMBD)}
        return tensors if tied else tensors | {"output.weight": self.matrix(N_VOCAB, N_EMBD)}


def _write(path: Path, architecture: str, tokenizer_of: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_KV_HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1)
    _add_tokenizer(writer, tokenizer_of)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    metadata = read_header(path).metadata
    tokens = metadata["tokenizer.ggml.tokens"][:N_VOCAB]
    known = set(tokens)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in metadata["tokenizer.ggml.token_type"][:N_VOCAB]])
    writer.add_token_merges([m for m in metadata["tokenizer.ggml.merges"] if m.replace(" ", "") in known])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
