"""What choosing seeds buys: error of one matrix by what a seed is chosen for, how many are tried, and the block.

    python research/seeds/bench_seeds.py
    python research/seeds/bench_seeds.py --tensor blk.15.ffn_down.weight --choices 65536

Prints bits per weight, the relative error ‖W − Ŵ‖ / ‖W‖ and the seconds of the search, with byte lanes beside it;
nothing is written but the original model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from common import dense_model, parser
from seeddelta import Recipe
from seeddelta.convert.encode import encode_tensor
from seeddelta.gguf.payload import payload_bytes
from seeddelta.gguf.source import open_source

BLOCKS = (64, 32, 16, 8)


def settings(choices: list[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and options of the recipes, without a residual first."""
    seeds: dict[str, Any] = {"base_kind": "prng_block", "scheme": "none"}
    yield "tensor, 1 seed", seeds
    for n in choices:
        yield f"row, {n} seeds", seeds | {"seed_per": "row", "seed_search": n}
    for block in BLOCKS:
        for n in choices:
            yield f"block of {block}, {n} seeds", seeds | {"seed_per": "block", "block": block, "seed_search": n}
    entries: dict[str, Any] = {"base_kind": "prng_block", "scheme": "coo", "K": "auto", "vals": "int8"}
    chosen = {"seed_per": "block", "seed_search": choices[-1]}
    for bits, block in ((3, 16), (4, 8)):
        yield f"tensor, 1 seed + coo, {bits} bits", entries | {"bits": bits}
        yield (
            f"block of {block}, {choices[-1]} seeds + coo, {bits} bits",
            entries | chosen | {"bits": bits, "block": block},
        )
    for rate in (1, 1.5, 2, 3, 4):
        yield f"lanes {rate:g}", {"bits": rate}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tensor", default="blk.5.ffn_up.weight", help="matrix to convert")
    options.add_argument("--choices", default="256,4096,65536", help="numbers of seeds (default: %(default)s)")
    given = options.parse_args()
    dense = dense_model(given.dense, given.work)
    weights = open_source(dense).matrix(given.tensor)
    print(f"{given.tensor} {list(weights.shape)}")
    for name, more in settings([int(n) for n in given.choices.split(",")]):
        started = time.perf_counter()
        encoded = encode_tensor(given.tensor, weights, "F16", Recipe(input=dense, output="unused.gguf", **more))
        rate = 8 * payload_bytes(encoded.description) / weights.size
        seconds = time.perf_counter() - started
        print(f"{name:44} {rate:6.3f} bits  rel_l2 {encoded.metrics.rel_l2:.4f}  {seconds:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
