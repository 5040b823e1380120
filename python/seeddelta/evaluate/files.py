"""What a model file costs: bytes, and bits a weight over the block matrices, for SeedΔ and plain GGUF alike."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path


@dataclass(frozen=True)
class FileSize:
    """`kind` is what most of the weights of the block matrices are stored as; `bits_per_weight` counts all bytes of the
    block matrices (names.TARGETS: attention and MLP of every layer), None when there are none.
    """

    file_bytes: int
    kind: str
    block_weights: int
    bits_per_weight: float | None


def file_size(path: str | os.PathLike[str]) -> FileSize:
    """Size of a model. The header is read, and the descriptions of a SeedΔ file. Raises FormatError."""
    from ..gguf import names
    from ..gguf.header import read_header
    from ..gguf.reader import is_seeddelta, open_seeddelta

    header = read_header(path)
    weights: Counter[str] = Counter()
    total = 0
    for name, info in header.tensors.items():
        if names.split_name(name) is not None:
            weights[info.type.name] += prod(info.shape)
            total += info.nbytes
    if is_seeddelta(path):
        with open_seeddelta(path, check_data=False) as file:
            for tensor in file.tensors.values():
                if names.split_name(tensor.name) is None:
                    continue  # embedding and output matrix
                base, scheme = tensor.description.base, tensor.description.residual.scheme
                bits = f" {base.step_bits / base.values_per_step:g}b" if base.kind == "trellis" else ""
                kind = f"SeedΔ {base.kind}{bits}" + ("" if scheme == "none" else f" + {scheme}")
                weights[kind] += prod(tensor.description.shape)
                total += tensor.payload_bytes
    count = sum(weights.values())
    kind = max(weights, key=weights.__getitem__) if weights else "?"
    return FileSize(Path(path).stat().st_size, kind, count, 8 * total / count if count else None)
