"""Weights a second of one matrix-vector product: SeedΔ's kernels beside ggml's, in one process and in turns.

    python benchmarks/bench_kernels.py --reps 15
    python benchmarks/bench_kernels.py --suite columns --reps 15
    python benchmarks/bench_kernels.py --suite statepack --reps 15
    python benchmarks/bench_kernels.py --suite lanes --reps 15
    python benchmarks/bench_kernels.py --suite lanes-memory --reps 9
    python benchmarks/bench_kernels.py --suite lanes-batch --reps 11

Instruction sets: SEEDDELTA_FORCE_ISA chooses ours; ggml's is the one that it was compiled for. The file names both.

ggml computes a graph that repeats the product, so that starting a graph costs nothing; rotation and rounding of the
activations are part of SeedΔ's time as ggml's own conversion of the activations is part of its time. ggml's matrices
lie as they do in a file (not repacked). One thread, and its CPU time: what other programs take does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import common
import numpy as np
from ggml_products import GGML_TYPES, Ggml, GgmlProduct
from seeddelta import _core
from seeddelta.convert.rates import lane_code
from seeddelta.gguf.schema import LANE_BYTES, LANES, column_strips

TARGET_SECONDS = 0.05  # of one sample
SHARES = (1.0, 0.7, 0.5, 0.3, 0.1)  # of the inputs that are active
BATCHES = (1, 2, 4, 8, 16, 64)  # tokens of one product
MEMORY_WEIGHTS = 128 << 20  # of all matrices of a suite that no cache holds


class SeedDeltaProduct:
    """W·x by our kernels, of one token's x, float32 [n_in], or of several, [n_tokens, n_in]."""

    def __init__(self, weight: _core.Weight, x: np.ndarray[Any, Any]) -> None:
        self._weight, self._x = weight, np.atleast_2d(x)

    def seconds(self, calls: int) -> float:
        self._weight.matmul(self._x)
        begin = time.thread_time()
        for _ in range(calls):
            self._weight.matmul(self._x)
        return time.thread_time() - begin


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that starts at a multiple of 64 bytes, as tensors in our files do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def random_lanes(
    n_out: int,
    n_in: int,
    bits: float,
    generator: Any,
    *,
    layout: Literal["row", "column"] = "row",
) -> _core.Weight:
    """Random codes of base kind lanes, for the code that a converter takes for so many bits.

    The time does not depend on them, and encoding large matrices takes minutes.
    """
    code = lane_code(bits, column=layout == "column")
    shape = (-(-n_out // LANES), code.lines(n_in), LANE_BYTES)
    if layout == "column":
        shape = (n_in, sum(column_strips(n_out)), code.column_lines)
    codes = aligned(generator.integers(0, 256, shape, dtype=np.uint8))
    return _core.Weight(
        "w",
        n_out,
        n_in,
        base_kind=2,
        base_seed=1,
        base_scale=1 / code.deviation,
        lane_code=code.number,
        rotation_block=64,
        layout=layout,
        arrays={"codes": codes, "row_scale": np.ones(n_out if layout == "row" else n_in, np.float16)},
    )


class ActiveProduct:
    """W·x over some of the inputs, in column layout."""

    def __init__(self, weight: _core.Weight, x: np.ndarray[Any, Any], share: float) -> None:
        n = round(share * weight.n_in)
        self._index = np.sort(np.random.default_rng(2).permutation(weight.n_in)[:n]).astype(np.int32)
        self._weight, self._x = weight, x

    def seconds(self, calls: int) -> float:
        self._weight.multiply_active(self._x, self._index)
        begin = time.thread_time()
        for _ in range(calls):
            self._weight.multiply_active(self._x, self._index)
        return time.thread_time() - begin


class ManyProducts:
    """Products with one of several matrices after the other."""

    def __init__(self, products: list[Callable[[], Any]]) -> None:
        self._products = products

    def seconds(self, calls: int) -> float:
        begin = time.thread_time()
        for i in range(calls):
            self._products[i % len(self._products)]()
        return time.thread_time() - begin


Product = GgmlProduct | SeedDeltaProduct | ActiveProduct | ManyProducts


def column_products(n_out: int, n_in: int, generator: Any) -> dict[str, Product]:
    """Rows beside columns at 4, 3 and 2 bits, and shares of the inputs at 4 bits."""
    x = generator.standard_normal(n_in, dtype=np.float32)
    products: dict[str, Product] = {}
    for bits in (4, 3, 2):
        products[f"rows-{bits}"] = SeedDeltaProduct(random_lanes(n_out, n_in, bits, generator), x)
        products[f"columns-{bits}"] = SeedDeltaProduct(random_lanes(n_out, n_in, bits, generator, layout="column"), x)
    weight = random_lanes(n_out, n_in, 4, generator, layout="column")
    for share in SHARES:
        products[f"columns-4-active-{share:g}"] = ActiveProduct(weight, x, share)
    return products


def ask_and_multiply(after: _core.Weight, weight: _core.Weight, x: np.ndarray[Any, Any]) -> None:
    """A product as in a model: the first codes of the weight after it are on their way when it ends."""
    weight.matmul(x)
    after.prefetch()


def statepack_products(n_out: int, n_in: int, generator: Any) -> dict[str, Product]:
    """float16 columns without a gate, and behind a bitmap of the inputs that are not nearly zero, by their share.

    The bitmap is used up to a density of 0.15; above it all inputs are computed with.
    """
    many = -(-MEMORY_WEIGHTS // (n_out * n_in))
    matrix = generator.standard_normal((n_out, n_in), dtype=np.float32)
    weights = [_core.ColumnWeight("w", matrix) for _ in range(many)]
    x = generator.standard_normal((1, n_in), dtype=np.float32)
    products: dict[str, Product] = {"no gate": ManyProducts([partial(weight.matmul, x) for weight in weights])}
    for density in (0.05, 0.1, 0.14, 0.5, 1.0):
        some = np.where(generator.permutation(n_in) < density * n_in, x, 0).astype(np.float32)
        gate = _core.Gate(n_in, {"state_pack_mlp": "on"})
        products[f"density {density:g}"] = ManyProducts([partial(weight.matmul, some, gate) for weight in weights])
    return products


def calibrate(seconds: Callable[[int], float]) -> int:
    """Products a sample, for about TARGET_SECONDS."""
    once = seconds(1)
    return max(1, min(2000, round(TARGET_SECONDS / max(once, 1e-6))))


def lanes_products(n_out: int, n_in: int, generator: Any) -> dict[str, Product]:
    """Byte lanes beside ggml's K types of like bits."""
    ggml = Ggml()
    x = generator.standard_normal(n_in, dtype=np.float32)
    dense = generator.standard_normal((n_out, n_in), dtype=np.float32)
    products: dict[str, Product] = {}
    for bits in (6, 5, 4.5, 4, 3.5, 3, 2.5, 2, 1.5, 1):
        products[f"lanes-{bits:g}"] = SeedDeltaProduct(random_lanes(n_out, n_in, bits, generator), x)
    for name in ("Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K"):
        if n_in % ggml.blck_size(GGML_TYPES[name]) == 0:
            products[name] = GgmlProduct(ggml, GGML_TYPES[name], dense, x)
    return products


def lanes_memory_products(n_out: int, n_in: int, generator: Any) -> dict[str, Product]:
    """The same from memory, with as many matrices as no cache holds."""
    ggml, many = Ggml(), -(-MEMORY_WEIGHTS // (n_out * n_in))
    x = generator.standard_normal(n_in, dtype=np.float32)
    dense = generator.standard_normal((n_out, n_in), dtype=np.float32)
    rows = [random_lanes(n_out, n_in, 4, generator) for _ in range(many)]
    products: dict[str, Product] = {}
    products["lanes-4"] = ManyProducts(
        [partial(ask_and_multiply, rows[i - 1], weight, x[None, :]) for i, weight in reversed([*enumerate(rows)])]
    )
    products["Q4_K"] = GgmlProduct(ggml, GGML_TYPES["Q4_K"], dense, x, many)
    return products


def lanes_batch_products(n_out: int, n_in: int, generator: Any) -> dict[str, Product]:
    """One product of several tokens, of byte lanes at 4 bits."""
    weight = random_lanes(n_out, n_in, 4, generator)
    return {
        f"lanes, tokens {tokens}": SeedDeltaProduct(weight, generator.standard_normal((tokens, n_in), dtype=np.float32))
        for tokens in BATCHES
    }


SUITES = {
    "lanes": lanes_products,
    "lanes-memory": lanes_memory_products,
    "lanes-batch": lanes_batch_products,
    "columns": column_products,
    "statepack": statepack_products,
}


def measure(shape: tuple[int, int], reps: int, suite: str) -> dict[str, Any]:
    """Rates in Gweights/s, a product counted once; of an active share as if nothing was left out."""
    n_out, n_in = shape
    generator = np.random.default_rng(1)
    products = SUITES[suite](n_out, n_in, generator)
    many = -(-MEMORY_WEIGHTS // (n_out * n_in))
    once = {"statepack": many, "lanes-memory": many}.get(suite)
    calls = {name: once or calibrate(product.seconds) for name, product in products.items()}
    rates: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(reps):
        for name, product in products.items():
            rates[name].append(calls[name] * n_out * n_in / product.seconds(calls[name]) / 1e9)
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": values}
        for name, values in rates.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="lanes", help="what is compared (default: %(default)s)")
    parser.add_argument("--shapes", help="rows x columns, with commas")
    parser.add_argument("--reps", type=int, default=11, help="repetitions (default: %(default)s)")
    parser.add_argument("--name", help="name of the result file")
    options = parser.parse_args()

    result = {}
    default = {
        "columns": "4096x4096,8192x2048,2048x8192,576x1536",
        "statepack": "2048x8192,576x1536",
        "lanes": "8192x4096,2048x2048,576x1536",
        "lanes-memory": "8192x4096",
        "lanes-batch": "2048x8192,1536x576",
    }
    for text in (options.shapes or default[options.suite]).split(","):
        n_out, n_in = map(int, text.split("x"))
        result[text] = measure((n_out, n_in), options.reps, options.suite)
        print(f"{text}: Gweights/s, median (range) of {options.reps}")
        for name, rate in result[text].items():
            print(f"  {name:26}{rate['median']:8.2f} ({rate['min']:.2f}-{rate['max']:.2f})")
    import llama_cpp

    settings = {"reps": options.reps, "threads": 1, "unit": "Gweights/s", "isa": _core.isa_active()}
    settings["ggml"] = llama_cpp.llama_print_system_info().decode()
    common.save(
        options.name or options.suite,
        {"benchmark": "kernels", "suite": options.suite, "settings": settings, "shapes": result},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
