"""NumPy oracle of the SeedΔ format: the definitions of docs/format.md, written to be read, for tests and notebooks."""

from __future__ import annotations

from .base import (
    TRELLIS_TABLE_1,
    TRELLIS_TABLE_2,
    prng_block_values,
    rotate,
    splitmix64_at,
    splitmix64_mix,
    trellis_values,
)
from .product import coo_dot, dequantize, matmul, quantize_activations

__all__ = [
    "TRELLIS_TABLE_1",
    "TRELLIS_TABLE_2",
    "coo_dot",
    "dequantize",
    "matmul",
    "prng_block_values",
    "quantize_activations",
    "rotate",
    "splitmix64_at",
    "splitmix64_mix",
    "trellis_values",
]
