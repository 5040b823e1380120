"""A codebook as the whole weight (StateCells) against a codebook as residual, at equal bytes, on one matrix.

    python benchmarks/bench_statecells.py
    python benchmarks/bench_statecells.py --tensor blk.15.ffn_down.weight --bits 3

Prints bits per weight and the relative error ‖W − Ŵ‖ / ‖W‖ of each; nothing is written but the original model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import dense_model, parser
from seeddelta import Recipe
from seeddelta.convert.encode import encode_tensor
from seeddelta.gguf.payload import payload_bytes
from seeddelta.gguf.source import open_source

SIZES = (64, 128, 256)  # atoms of a dictionary


def settings(bits: float, n_in: int, n_out: int, files: dict[str, Path]) -> Iterator[tuple[str, Recipe]]:
    """Recipes that take about `bits` bits per weight."""

    def recipe(**options: Any) -> Recipe:
        return Recipe(**files, **options)

    def entries(room: float, size: int) -> int:
        """Atoms a row that fit into `room` bits per weight beside the dictionary."""
        return math.floor((room - 16 * size / n_out) * n_in / 32)

    for base in ("none", "prng_block", "fht_struct"):
        for size in SIZES:
            k = min(entries(bits - 16 / n_in, size), size)
            if k > 0:
                yield (
                    f"{base} + {size} atoms, {k} a row",
                    recipe(base_kind=base, scheme="codebook_resid", codebook_size=size, K=k),
                )
    spent = 2 + 16 / n_in  # the row scales
    for size in SIZES:
        k = min(entries(bits - spent, size), size)
        if k > 0:
            yield (
                f"lanes 2 + {size} atoms, {k} a row",
                recipe(bits=2, scheme="codebook_resid", codebook_size=size, K=k),
            )
    k = math.floor((bits - spent) * n_in / 32)
    yield f"lanes 2 + coo, {k} a row", recipe(bits=2, scheme="coo", K=k)
    yield "none + coo", recipe(base_kind="none", scheme="coo", bits=bits, K="auto", vals="int8")
    yield "lanes 2", recipe(bits=2)
    yield f"lanes {bits:g}", recipe(bits=bits)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tensor", default="blk.5.ffn_up.weight", help="matrix to convert")
    options.add_argument("--bits", type=float, default=4, help="bits per weight")
    given = options.parse_args()
    dense = dense_model(given.dense, given.work)
    weights = open_source(dense).matrix(given.tensor)
    n_out, n_in = weights.shape
    print(f"{given.tensor} [{n_out}, {n_in}]")
    for name, recipe in settings(given.bits, n_in, n_out, {"input": dense, "output": given.work / "unused.gguf"}):
        encoded = encode_tensor(given.tensor, weights, "F16", recipe)
        rate = 8 * payload_bytes(encoded.description) / weights.size
        print(f"{name:40} {rate:6.3f} bits  rel_l2 {encoded.metrics.rel_l2:.4f}", flush=True)


if __name__ == "__main__":
    main()
