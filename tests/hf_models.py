"""Tiny random models as the Hugging Face hub has them: config.json, tokenizer.model, model.safetensors."""

from __future__ import annotations

import json
import string
import struct
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def write_hf_model(folder: Path, kind: str) -> Path:
    """A llama or a qwen2 with a tokenizer of letters and bytes."""
    from safetensors.numpy import save_file

    folder.mkdir()
    pieces = _pieces()
    (folder / "tokenizer.model").write_bytes(_sentencepiece(pieces))
    vocabulary = len(pieces)
    config = {
        "architectures": [_CLASSES[kind]], "model_type": kind, "vocab_size": vocabulary, "hidden_size": WIDTH,
        "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(kind, vocabulary), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tensors(kind: str, vocabulary: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    kv = WIDTH * KV_HEADS // HEADS
    shapes = {"model.embed_tokens.weight": (vocabulary, WIDTH), "lm_head.weight": (vocabulary, WIDTH)}
    norms = ["model.norm.weight"]
    biases: dict[str, int] = {}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", WIDTH, WIDTH), ("self_attn.k_proj", kv, WIDTH), ("self_attn.v_proj", kv, WIDTH),
            ("self_attn.o_proj", WIDTH, WIDTH), ("mlp.gate_proj", HIDDEN, WIDTH), ("mlp.up_proj", HIDDEN, WIDTH),
            ("mlp.down_proj", WIDTH, HIDDEN),
        ):  # fmt: skip
            shapes[f"{stem}.{name}.weight"] = (rows, columns)
            if kind == "qwen2" and name.endswith(("q_proj", "k_proj", "v_proj")):
                biases[f"{stem}.{name}.bias"] = rows
        norms += [f"{stem}.input_layernorm.weight", f"{stem}.post_attention_layernorm.weight"]
    found = {name: random.standard_normal(shape, np.float32) / shape[1] ** 0.5 for name, shape in shapes.items()}
    found |= {name: 1 + random.standard_normal(WIDTH, np.float32) / 8 for name in norms}
    return found | {name: random.standard_normal(rows, np.float32) / 8 for name, rows in biases.items()}


def _pieces() -> list[tuple[str, int]]:
    """Texts and types of tokens: 1 normal, 2 unknown, 3 control, 6 byte."""
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    letters = [(letter, 1) for letter in ("\u2581", *string.ascii_letters, *string.digits, *string.punctuation)]
    return [*special, *((f"<0x{byte:02X}>", 6) for byte in range(256)), *letters]


def _sentencepiece(pieces: list[tuple[str, int]]) -> bytes:
    """A model of the library sentencepiece, of the kind BPE: protobuf, written by hand."""
    found = b""
    for number, (text, kind) in enumerate(pieces):
        piece = _field(1, text.encode()) + struct.pack("<Bf", 2 << 3 | 5, -float(number)) + bytes((3 << 3, kind))
        found += _field(1, piece)
    byte_fallback = bytes((35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1))
    return found + _field(2, bytes((3 << 3, 2)) + byte_fallback)


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data
