"""Llama-shaped models of random weights, larger than any cache: for speed, which does not depend on the values.

    python benchmarks/synthetic.py --shape 1b --models F16,seeddelta-4,Q4_K

One layer is drawn, quantised by the loaded llama.cpp (pure: all matrices of the layer are of one type) or encoded by
`seeddelta.build`, and written as every layer of the model. The layers are equal, but each has its own place in the
file, so that no cache holds more of it than of a real model. Tokenizer and vocabulary are SmolLM2's. The embedding,
which is the output matrix too, is Q8_0 in all models. Types that ask for an importance matrix get one of ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import common
import gguf.quants
import numpy as np
import seeddelta
from gguf import GGMLQuantizationType, GGUFValueType
from seeddelta.cli.demo import bundled_model
from seeddelta.evaluate.quantize import quantize
from seeddelta.gguf import schema
from seeddelta.gguf.descriptions import description_arrays, read_descriptions
from seeddelta.gguf.header import Header
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf

F16, F32, Q8_0 = GGMLQuantizationType.F16, GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0
SEED = 1
FIRST = "blk.0."  # begins the names of the one layer


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama."""

    n_embd: int
    n_ff: int
    n_layers: int
    n_head: int
    n_kv_head: int

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head

    def without_gate(self) -> Shape:
        """As many weights without ffn_gate: a hidden layer half as wide again (Shazeer 2020, GLU Variants)."""
        return replace(self, n_ff=self.n_ff * 3 // 2)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """[n_out, n_in] of the matrices of a layer."""
        kv = self.n_kv_head * self.head
        return {
            "attn_q": (self.n_embd, self.n_embd),
            "attn_k": (kv, self.n_embd),
            "attn_v": (kv, self.n_embd),
            "attn_output": (self.n_embd, self.n_embd),
            "ffn_gate": (self.n_ff, self.n_embd),
            "ffn_up": (self.n_ff, self.n_embd),
            "ffn_down": (self.n_embd, self.n_ff),
        }


SHAPES = {
    "1b": Shape(n_embd=2048, n_ff=8192, n_layers=16, n_head=32, n_kv_head=8),  # Llama 3.2 1B
    "3b": Shape(n_embd=3072, n_ff=8192, n_layers=28, n_head=24, n_kv_head=8),  # Llama 3.2 3B
    "8b": Shape(n_embd=4096, n_ff=14336, n_layers=32, n_head=32, n_kv_head=8),  # Llama 3.1 8B
    "tiny": Shape(n_embd=256, n_ff=512, n_layers=2, n_head=4, n_kv_head=2),  # for trying the programs
}
# llama.h, enum llama_ftype: the mixture whose default type it is
PURE_TYPES = {
    "Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q3_K": 11, "Q2_K": 10, "IQ4_XS": 30, "IQ3_S": 26, "IQ3_XXS": 23, "IQ2_XXS": 19,
}  # fmt: skip
COLUMNS = (
    "seeddelta-4-columns"  # matrices whose inputs can be skipped in column layout, those of query, key and value not
)
COLUMN_TENSORS = ["ffn_down", "ffn_gate", "ffn_up", "attn_output"]
MODELS = ("F16", "seeddelta-4", "seeddelta-3", "seeddelta-2", COLUMNS, *PURE_TYPES)


def make_models(names: Sequence[str], shape: str, work: Path) -> dict[str, Path]:
    """Models by name (of MODELS and common.SEEDDELTA). One that lies in `work` already is used as it is."""
    known = dict.fromkeys((*MODELS, *common.SEEDDELTA))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: not known; choose from {', '.join(known)}")
    work.mkdir(parents=True, exist_ok=True)
    return {name: _model(name, shape, work) for name in names}


def chosen_models(names: Sequence[str], options: argparse.Namespace) -> dict[str, Path]:
    """Models by name: of random weights with --shape, else of the original model."""
    if options.shape is None:
        return common.make_models(names, common.dense_model(options.dense, options.work), options.work)
    return make_models(names, options.shape, options.work)


def _model(name: str, shape: str, work: Path) -> Path:
    seeddelta_file = name in common.SEEDDELTA or name == COLUMNS
    kind = ".seeddelta" if seeddelta_file else ""
    path = work / f"synthetic-{shape}-{name}{kind}.gguf"
    if path.exists():
        return path
    layer = work / f"synthetic-{shape}-one-layer.gguf"
    if not layer.exists():
        print(f"draw {layer.name}", file=sys.stderr)
        write_layer(SHAPES[shape], layer)
    print(f"make {path.name}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        single = layer if name == "F16" else Path(folder) / "one-layer.gguf"
        if seeddelta_file:
            given = {"bits": 4, "column_tensor": COLUMN_TENSORS} if name == COLUMNS else common.SEEDDELTA[name]
            seeddelta.build(seeddelta.Recipe(input=layer, output=single, seed=SEED, targets="all", **given))
        elif name != "F16":
            sizes = {f"{FIRST}{key}.weight": n_in for key, (_, n_in) in SHAPES[shape].matrices().items()}
            ones = [(key.encode(), np.ones(n_in, np.float32)) for key, n_in in sizes.items()]
            quantize(layer, single, PURE_TYPES[name], importances=ones, pure=True)
        repeat_layer(single, path, SHAPES[shape].n_layers)
    return path


def write_layer(shape: Shape, path: Path) -> None:
    """A model of one layer: matrices of normal values with the variance 1/n_in in F16, norms of ones."""
    bundled = read_header(bundled_model())
    n_vocab = len(bundled.metadata["tokenizer.ggml.tokens"])
    tensors = {
        "token_embd.weight": PlannedTensor("token_embd.weight", (n_vocab, shape.n_embd), Q8_0),
        "output_norm.weight": PlannedTensor("output_norm.weight", (shape.n_embd,), F32),
    }
    for key in ("attn_norm", "ffn_norm"):
        tensors[key] = PlannedTensor(f"{FIRST}{key}.weight", (shape.n_embd,), F32)
    for key, size in shape.matrices().items():
        tensors[key] = PlannedTensor(f"{FIRST}{key}.weight", size, F16)
    generator = np.random.default_rng(SEED)

    def data(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        if tensor.type == F32:
            yield np.ones(tensor.shape, np.float32)
            return
        values = generator.standard_normal(tensor.shape, dtype=np.float32) * np.float32(tensor.shape[-1] ** -0.5)
        yield gguf.quants.quantize(values, tensor.type)

    write_gguf(path, _metadata(shape, bundled), list(tensors.values()), data)


def _metadata(shape: Shape, bundled: Header) -> dict[str, Value]:
    numbers = {
        "context_length": 1 << 17,
        "embedding_length": shape.n_embd,
        "block_count": 1,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_kv_head,
        "rope.dimension_count": shape.head,
        "vocab_size": len(bundled.metadata["tokenizer.ggml.tokens"]),
    }
    values: dict[str, Value] = {
        "general.architecture": Typed("llama", GGUFValueType.STRING),
        "general.name": Typed("random weights, for speed only", GGUFValueType.STRING),
        "llama.attention.layer_norm_rms_epsilon": Typed(1e-5, GGUFValueType.FLOAT32),
        "llama.rope.freq_base": Typed(500000.0, GGUFValueType.FLOAT32),
    }
    values |= {f"llama.{key}": Typed(value, GGUFValueType.UINT32) for key, value in numbers.items()}
    tokenizer = {key: value for key, value in copied_metadata(bundled).items() if key.startswith("tokenizer.")}
    return values | tokenizer


def repeat_layer(source: Path, path: Path, n_layers: int) -> None:
    """A model whose layers are all the one layer of another: plain, or SeedΔ with its descriptions repeated too."""
    header = read_header(source)
    stored = np.memmap(source, dtype=np.uint8, mode="r")
    metadata = copied_metadata(header, without=schema.KEY_CRC32) | {
        f"{header.metadata['general.architecture']}.block_count": Typed(n_layers, GGUFValueType.UINT32)
    }
    described = read_descriptions(header.metadata)
    repeated = [tensor for tensor in described if not tensor.name.startswith(FIRST)]
    repeated += [
        tensor.model_copy(update={"name": _renamed(tensor.name, layer)})
        for layer in range(n_layers)
        for tensor in described
        if tensor.name.startswith(FIRST)
    ]
    metadata |= description_arrays(repeated)
    tensors = {name: info for name, info in header.tensors.items() if not name.startswith(FIRST)}
    for layer in range(n_layers):
        tensors |= {_renamed(name, layer): info for name, info in header.tensors.items() if name.startswith(FIRST)}
    planned = [PlannedTensor(name, info.shape, info.type) for name, info in tensors.items()]

    def data(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        info = tensors[tensor.name]
        yield stored[info.offset : info.offset + info.nbytes]

    write_gguf(path, metadata, planned, data)


def _renamed(name: str, layer: int) -> str:
    return f"blk.{layer}.{name.removeprefix(FIRST)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1b", help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=common.WORK, help="folder of the models (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, with commas (default: %(default)s)")
    options = parser.parse_args()
    for path in make_models(options.models.split(","), options.shape, options.work).values():
        print(f"{path.stat().st_size / 1e6:9.1f} MB  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
