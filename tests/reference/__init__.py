"""NumPy oracle of the SeedΔ format: the definitions of docs/reference/format.md, written to be read."""

from __future__ import annotations

from .base import (
    prng_block_values,
    rotate,
    rotate_back,
    splitmix64_at,
    splitmix64_mix,
)
from .lanes import column_lanes_values, lane_steps, lanes_values
from .product import LANE_GROUP, column_matmul, coo_dot, dequantize, matmul, quantize_activations
from .residual import (
    dictionary_dot,
    proc_sparse_base,
    proc_sparse_blocks,
    proc_sparse_dense,
    proc_sparse_dot,
)

__all__ = [
    "LANE_GROUP",
    "column_lanes_values",
    "column_matmul",
    "coo_dot",
    "dequantize",
    "dictionary_dot",
    "lane_steps",
    "lanes_values",
    "matmul",
    "prng_block_values",
    "proc_sparse_base",
    "proc_sparse_blocks",
    "proc_sparse_dense",
    "proc_sparse_dot",
    "quantize_activations",
    "rotate",
    "rotate_back",
    "splitmix64_at",
    "splitmix64_mix",
]
