"""Models in the shapes of real ones, of random weights in F16, with as many blocks as there is room for.

    python benchmarks/real_shapes.py --shape llama-3.1-8b --blocks 8 -o model.gguf

For time and memory, which do not depend on the values. The vocabulary has the size of the real one: SmolLM2's tokens,
and tokens that no text has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, TokenType
from seeddelta.cli.demo import bundled_model
from seeddelta.gguf.descriptions import description_arrays, read_descriptions
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.schema import KEY_CRC32, TENSORS
from seeddelta.gguf.writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf
from seeddelta.numeric import row_ranges

F16, F32 = GGMLQuantizationType.F16, GGMLQuantizationType.F32
SEED = 1
_T = TypeVar("_T")


@dataclass(frozen=True)
class RealShape:
    """Sizes of a model; `n_ff` is that of an expert where there are `n_experts`, of which a token has `n_used`."""

    architecture: str
    n_embd: int
    n_ff: int
    n_layers: int
    n_head: int
    n_kv_head: int
    head: int
    n_vocab: int
    tied: bool = False
    n_experts: int = 0
    n_used: int = 0

    def block(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of a block; those of one dimension are norms."""
        q, kv = self.n_head * self.head, self.n_kv_head * self.head
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (self.n_embd,), "ffn_norm": (self.n_embd,),
            "attn_q": (q, self.n_embd), "attn_k": (kv, self.n_embd), "attn_v": (kv, self.n_embd),
            "attn_output": (self.n_embd, q),
        }  # fmt: skip
        if self.architecture.startswith("qwen3"):
            shapes |= {"attn_q_norm": (self.head,), "attn_k_norm": (self.head,)}
        mlp = {"gate": (self.n_ff, self.n_embd), "up": (self.n_ff, self.n_embd), "down": (self.n_embd, self.n_ff)}
        if not self.n_experts:
            return shapes | {f"ffn_{name}": shape for name, shape in mlp.items()}
        shapes["ffn_gate_inp"] = (self.n_experts, self.n_embd)
        return shapes | {f"ffn_{name}_exps": (self.n_experts, *shape) for name, shape in mlp.items()}


SHAPES = {
    "llama-3.2-1b": RealShape("llama", 2048, 8192, 16, 32, 8, 64, 128256, tied=True),
    "qwen3-4b": RealShape("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, tied=True),
    "llama-3.1-8b": RealShape("llama", 4096, 14336, 32, 32, 8, 128, 128256),
    "qwen3-30b-a3b": RealShape("qwen3moe", 2048, 768, 48, 32, 4, 128, 151936, n_experts=128, n_used=8),
    # for trying the programs
    "tiny-dense": RealShape("qwen3", 64, 128, 3, 4, 2, 16, 50000, tied=True),
    "tiny-experts": RealShape("qwen3moe", 64, 64, 3, 4, 2, 16, 50000, n_experts=8, n_used=2),
}


def write_model(shape: RealShape, blocks: int, path: Path) -> None:
    """A model of some blocks: matrices of normal values with the variance 1/n_in, norms of ones."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (shape.n_vocab, shape.n_embd), "output_norm": (shape.n_embd,)}
    if not shape.tied:
        shapes["output"] = (shape.n_vocab, shape.n_embd)
    for block in range(blocks):
        shapes |= {f"blk.{block}.{name}": size for name, size in shape.block().items()}
    plan = [
        PlannedTensor(f"{name}.weight", size, F32 if len(size) == 1 or name.endswith("ffn_gate_inp") else F16)
        for name, size in shapes.items()
    ]
    generator = np.random.default_rng(SEED)

    def data(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        kind = np.dtype(np.float32 if tensor.type == F32 else np.float16)
        if len(tensor.shape) == 1:
            yield np.ones(tensor.shape, kind)
            return
        n_in = tensor.shape[-1]
        for begin, end in row_ranges(int(np.prod(tensor.shape[:-1])), n_in):
            values = generator.standard_normal((end - begin, n_in), dtype=np.float32)
            yield (values * np.float32(n_in**-0.5)).astype(kind)

    write_gguf(path, _metadata(shape, blocks), plan, data)


def repeat_blocks(source: Path, blocks: int, path: Path) -> None:
    """A SeedΔ file with the blocks of another again and again, until it has so many: for load time and memory."""
    header = read_header(source)
    count = f"{header.metadata['general.architecture']}.block_count"
    own = header.metadata[count]

    def at(name: str, block: int | None) -> str:
        return name if block is None else re.sub(r"^blk\.\d+\.", f"blk.{block}.", name)

    def repeated(found: Iterable[_T], name: Callable[[_T], str]) -> list[tuple[_T, int | None]]:
        """What is of no block, then each block's as often as it comes."""
        by_block: dict[int | None, list[_T]] = {}
        for one in found:
            place = re.match(r"blk\.(\d+)\.", name(one))
            by_block.setdefault(int(place[1]) if place else None, []).append(one)
        rest = [(one, None) for one in by_block.get(None, [])]
        return rest + [(one, block) for block in range(blocks) for one in by_block[block % own]]

    values = copied_metadata(header, without=TENSORS)
    values[count] = Typed(blocks, GGUFValueType.UINT32)
    descriptions = repeated(read_descriptions(header.metadata), lambda one: one.name)
    values |= description_arrays([one.model_copy(update={"name": at(one.name, block)}) for one, block in descriptions])
    tensors = repeated(zip(header.tensors.values(), header.metadata[KEY_CRC32], strict=True), lambda one: one[0].name)
    values[KEY_CRC32] = Typed([sum_ for (_, sum_), _ in tensors], GGUFValueType.ARRAY, GGUFValueType.UINT32)
    plan = {at(info.name, block): info for (info, _), block in tensors}
    data = np.memmap(source, np.uint8, "r")

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        info = plan[tensor.name]
        yield data[info.offset : info.offset + info.nbytes]

    write_gguf(path, values, [PlannedTensor(name, info.shape, info.type) for name, info in plan.items()], chunks)


def _metadata(shape: RealShape, blocks: int) -> dict[str, Value]:
    bundled = read_header(bundled_model())
    numbers = {
        "context_length": 1 << 15,
        "embedding_length": shape.n_embd,
        "block_count": blocks,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_kv_head,
        "attention.key_length": shape.head,
        "attention.value_length": shape.head,
        "rope.dimension_count": shape.head,
        "vocab_size": shape.n_vocab,
    }
    if shape.n_experts:
        numbers |= {
            "expert_count": shape.n_experts, "expert_used_count": shape.n_used, "expert_feed_forward_length": shape.n_ff
        }  # fmt: skip
    values: dict[str, Value] = {
        "general.architecture": Typed(shape.architecture, GGUFValueType.STRING),
        "general.name": Typed("random weights", GGUFValueType.STRING),
        f"{shape.architecture}.attention.layer_norm_rms_epsilon": Typed(1e-6, GGUFValueType.FLOAT32),
        f"{shape.architecture}.rope.freq_base": Typed(500000.0, GGUFValueType.FLOAT32),
    }
    values |= {f"{shape.architecture}.{key}": Typed(value, GGUFValueType.UINT32) for key, value in numbers.items()}
    values |= {key: value for key, value in copied_metadata(bundled).items() if key.startswith("tokenizer.")}
    tokens = list(bundled.metadata["tokenizer.ggml.tokens"])
    kinds = [int(kind) for kind in bundled.metadata["tokenizer.ggml.token_type"]]
    more = shape.n_vocab - len(tokens)
    tokens += [f"<unused {number}>" for number in range(more)]
    values["tokenizer.ggml.tokens"] = Typed(tokens, GGUFValueType.ARRAY, GGUFValueType.STRING)
    kinds += [int(TokenType.UNUSED)] * more
    values["tokenizer.ggml.token_type"] = Typed(kinds, GGUFValueType.ARRAY, GGUFValueType.INT32)
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--blocks", type=int, help="default: those of the real model")
    parser.add_argument("--output", "-o", type=Path, required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    write_model(shape, options.blocks or shape.n_layers, options.output)
    print(f"{options.output.stat().st_size / 1e9:.2f} GB  {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
