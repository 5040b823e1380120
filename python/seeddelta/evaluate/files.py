"""What a model file costs: bytes, and bits per weight of the blocks and of all, for SeedΔ and plain GGUF alike."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gguf.reader import StoredTensor


@dataclass(frozen=True)
class FileSize:
    """`kind` is what most of the weights of the block matrices are stored as, of a SeedΔ file with the range of bits.
    `bits_per_weight` counts all bytes of the matrices of the layers (names.split_name), None when there are none.
    `weights` and `model_bits_per_weight` are over all tensors: embedding, output matrix and norms, too.
    """

    file_bytes: int
    kind: str
    block_weights: int
    bits_per_weight: float | None
    weights: int
    model_bits_per_weight: float | None


def file_size(path: str | os.PathLike[str]) -> FileSize:
    """Size of a model. The header is read, and the descriptions of a SeedΔ file. Raises FormatError."""
    from ..gguf import names
    from ..gguf.model_file import read_header
    from ..gguf.reader import is_seeddelta, open_seeddelta
    from ..gguf.schema import LanesBase

    header = read_header(path)
    payload: set[str] = set()
    stored: list[tuple[str, str, int, int]] = []  # name, kind, weights, bytes
    rates: dict[str, set[float]] = {}  # bits that a kind has in the blocks
    if is_seeddelta(path):
        with open_seeddelta(path, check_data=False) as file:
            payload = set(header.tensors).difference(file.dense_tensors)
            for tensor in file.tensors.values():
                kind, base = _kind(tensor), tensor.description.base
                stored.append((tensor.name, kind, tensor.description.weights, tensor.payload_bytes))
                if names.split_name(tensor.name) is not None and isinstance(base, LanesBase):
                    rates.setdefault(kind, set()).add(base.bits)
    for name, info in header.tensors.items():
        if name not in payload:
            stored.append((name, info.type.name, prod(info.shape), info.nbytes))
    blocks = [entry for entry in stored if names.split_name(entry[0]) is not None]
    kinds: Counter[str] = Counter()
    for _, kind, count, _ in blocks:
        kinds[kind] += count
    block_weights, weights = kinds.total(), sum(entry[2] for entry in stored)
    kind = max(kinds, key=kinds.__getitem__) if kinds else "?"
    if kind in rates:
        ends = sorted({min(rates[kind]), max(rates[kind])})
        kind = kind.format(" to ".join(f"{rate:g}" for rate in ends))
    return FileSize(
        file_bytes=header.file_size,
        kind=kind,
        block_weights=block_weights,
        bits_per_weight=_bits(blocks, block_weights),
        weights=weights,
        model_bits_per_weight=_bits(stored, weights),
    )


def _bits(entries: Iterable[tuple[str, str, int, int]], weights: int) -> float | None:
    return 8 * sum(entry[3] for entry in entries) / weights if weights else None


def _kind(tensor: StoredTensor) -> str:
    """What a converted tensor is stored as, with {} for the number of bits."""
    from ..gguf.schema import LanesBase

    base, scheme = tensor.description.base, tensor.description.residual.scheme
    kind = "{} bits" if isinstance(base, LanesBase) else base.kind
    return f"SeedΔ {kind}" + ("" if scheme == "none" else f" + {scheme}")
