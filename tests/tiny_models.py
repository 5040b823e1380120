"""Small GGUF models made on the spot, for tests of files and of the builder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_FF, N_KV, N_LAYERS = 64, 96, 32, 2
SHAPES = {
    "ffn_gate": (N_FF, N_EMBD),
    "ffn_up": (N_FF, N_EMBD),
    "ffn_down": (N_EMBD, N_FF),
    "attn_q": (N_EMBD, N_EMBD),
    "attn_k": (N_KV, N_EMBD),
    "attn_v": (N_KV, N_EMBD),
    "attn_output": (N_EMBD, N_EMBD),
}
TARGET_NAMES = tuple(f"blk.{layer}.{target}.weight" for layer in range(N_LAYERS) for target in SHAPES)


def tiny_weights(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of a model with two layers, float32, Gaussian, in llama.cpp's names."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray[Any, Any]] = {"token_embd.weight": rng.normal(0, 1, (40, N_EMBD))}
    for layer in range(N_LAYERS):
        tensors[f"blk.{layer}.attn_norm.weight"] = np.ones(N_EMBD)
        for target, shape in SHAPES.items():
            tensors[f"blk.{layer}.{target}.weight"] = rng.normal(0, 0.05, shape)
    tensors["output_norm.weight"] = np.ones(N_EMBD)
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what it was told to its file, and close that."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(
    path: Path,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    *,
    architecture: str = "llama",
    alignment: int | None = None,
    keys: Mapping[str, int] | None = None,
    layers: int = N_LAYERS,
) -> Path:
    """Write a model with matrices of a type that gguf-py can quantize; vectors stay F32."""
    writer = gguf.GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in (keys or {}).items():
        writer.add_uint32(key, value)
    writer.add_block_count(layers)
    writer.add_embedding_length(N_EMBD)
    writer.add_token_list(["<s>", "a", "Ω", "\n"])
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0])
    writer.add_file_type(1)
    for name, tensor in (tiny_weights() if tensors is None else tensors).items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    finish(writer)
    return path
