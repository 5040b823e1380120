"""A llama model of a GGUF file as a network of transformers, its calibration, and its matrices as GGUF has them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dense_file import F32, layer_matrices, write_with
from seeddelta.gguf.names import split_name
from seeddelta.gguf.source import SourceModel, open_source
from transformers import AutoModelForCausalLM, AutoTokenizer

MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


class Network:
    """The network, its tokenizer, and the file that they came from. Raises ValueError for other weights than its."""

    def __init__(self, model: Path) -> None:
        where = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
        self.source: SourceModel = open_source(model)
        self.tokenizer = AutoTokenizer.from_pretrained(**where)
        self.network: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        del self.network.config.quantization_config  # only says that it came from a GGUF file
        for name, values in self.matrices().items():
            if (values != self.source.matrix(name)).any():
                raise ValueError(f"{model}: transformers has other weights in {name}")

    def calibration(self, text: Path, chunks: int, ctx: int) -> list[dict[str, torch.Tensor]]:
        """The first chunks of a text, int64[1, ctx] each."""
        tokens = self.tokenizer(text.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
        taken = torch.tensor(tokens[: chunks * ctx]).reshape(chunks, 1, ctx)
        return [{"input_ids": chunk, "attention_mask": torch.ones_like(chunk)} for chunk in taken]

    def matrices(self) -> dict[str, F32]:
        """The matrices of the layers, float32[n_out, n_in] by their names in GGUF."""
        weights, found = self.network.state_dict(), {}
        for name in layer_matrices(self.source):
            place = split_name(name)
            assert place is not None
            layer, kind = place
            found[name] = weights[f"model.layers.{layer}.{MODULES[kind]}.weight"].float().numpy()
            if kind in HEADS:
                found[name] = as_in_gguf(found[name], self.source.metadata[f"llama.{HEADS[kind]}"])
        return found


def as_in_gguf(rows: F32, heads: int) -> F32:
    """Rows of a query or key matrix in llama.cpp's order: the two halves of a head that rotate together, in turns."""
    n_out, n_in = rows.shape
    return rows.reshape(heads, 2, n_out // heads // 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options of a method that has a grid for every group of columns."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="dense GGUF model of the llama architecture")
    parser.add_argument("--text", type=Path, required=True, help="calibration text")
    parser.add_argument("--chunks", type=int, default=48, help="chunks of it (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument("--bits", type=int, default=4, help="bits of a code (default: %(default)s)")
    parser.add_argument("--group", type=int, default=32, help="columns with one scale (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="dense F16 file to write")
    return parser


def finish(network: Network, options: argparse.Namespace, seconds: float, **more: Any) -> None:
    """Write the file, and print what its grids take: codes, scales of 16 bits, zero points as wide as a code."""
    matrices = network.matrices()
    write_with(network.source, options.output, matrices)
    lost = []
    for name, values in matrices.items():
        before = network.source.matrix(name)
        lost.append(np.linalg.norm(values - before) / np.linalg.norm(before))
        codes = max(len(np.unique(group)) for group in values[:64].reshape(-1, options.group))
        if codes > 2**options.bits:
            raise ValueError(f"{name} has {codes} values in a group, {options.bits} bits have fewer")
    weights = sum(values.size for values in matrices.values())
    size = (weights * options.bits + weights // options.group * (16 + options.bits)) // 8
    found = {
        "bits": options.bits,
        "group": options.group,
        "chunks": options.chunks,
        **more,
        "bytes": size,
        "bits_per_weight": 8 * size / weights,
        "plain_error": float(np.sqrt(np.mean(np.square(lost)))),
        "processor_seconds": round(seconds, 1),
    }
    print(json.dumps(found))
