"""Weighted error of every matrix at what it costs: SeedΔ's codes beside llama.cpp's types, with one imatrix.

    seeddelta imatrix dense.gguf -f wiki.valid.txt -o imatrix.gguf --chunks 48
    python benchmarks/bench_tensors.py --imatrix imatrix.gguf

The error is sqrt(Σ E[x²]·(W − Ŵ)² / Σ E[x²]·W²) with the E[x²] of the imatrix, which both sides are given. llama.cpp's
types are those of the loaded library (ggml_quantize_chunk), read back by gguf-py; rows are merged where a width is no
multiple of 256, and the imatrix repeated for them, so that no type falls back to another. Bits count every byte.

The bundled model was itself stored in llama.cpp's types: its weights lie on their grids, and a type that finds the same
grid again errs up to ten times less than on any other model. So uniform noise is added first (`--dither`, its width in
units of each row's root mean square; a step of the 4-bit grids is about 0.27); both sides get the same noisy weights.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import common
import numpy as np
import numpy.typing as npt
from ggml_products import Ggml
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from seeddelta import Recipe, _core
from seeddelta.convert.encode import EncodedTensor, encode_tensor
from seeddelta.gguf.imatrix import read_imatrix
from seeddelta.gguf.names import parse_layers, split_name
from seeddelta.gguf.reader import weight_arguments
from seeddelta.gguf.source import open_source
from tqdm.auto import tqdm

F32 = npt.NDArray[np.float32]
TYPES = ("IQ2_XXS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "Q4_K", "Q4_0")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--imatrix", type=Path, required=True, help="imatrix of the original model, GGUF")
    parser.add_argument("--layers", default="0,7,15,22,29", help="layers (default: %(default)s)")
    parser.add_argument("--bits", default="2,3,4", help="bits per weight (default: %(default)s)")
    parser.add_argument("--column-power", type=float, help="of the recipe (default: the recipe's)")
    parser.add_argument("--types", default=",".join(TYPES), help="llama.cpp's types (default: %(default)s)")
    parser.add_argument("--dither", type=float, default=0.35, help="width of the noise (default: %(default)s)")
    options = parser.parse_args()

    more = {} if options.column_power is None else {"column_power": options.column_power}
    random = np.random.default_rng(0)
    dense = common.dense_model(options.dense, options.work)
    importances = read_imatrix(options.imatrix)
    layers = parse_layers(options.layers)
    ours = [float(bits) for bits in options.bits.split(",")]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    source, ggml = open_source(dense), Ggml()
    names = [name for name in source.tensors if (at := split_name(name)) is not None and at[0] in layers]
    for name in tqdm(names, unit="tensor"):
        weights = source.matrix(name)
        noise = random.uniform(-0.5, 0.5, weights.shape) * np.sqrt(np.mean(weights**2, axis=1, keepdims=True))
        weights = np.asarray(weights + options.dither * noise, np.float32)
        scale = importances.importance(name, weights.shape[1])
        for bits in ours:
            recipe = Recipe(input=dense, output=Path("none"), bits=bits, **more)
            encoded = encode_tensor(name, weights, "F16", recipe, scale)
            size = sum(array.nbytes for array in encoded.arrays.values())
            found[f"lanes-{bits:g}"].append(_row(name, weights, decoded(encoded), size, scale))
        for kind in filter(None, options.types.split(",")):
            back, size = _quantised(ggml, weights, scale, GGMLQuantizationType[kind])
            found[kind].append(_row(name, weights, back, size, scale))
    summary = {kind: _summary(rows) for kind, rows in found.items()}
    _print(summary)
    result = {
        "benchmark": "tensors",
        "settings": {
            "dense": dense.name,
            "imatrix": options.imatrix.name,
            "layers": options.layers,
            "dither": options.dither,
        },
        "summary": summary,
    }
    common.save(options.name or "tensors", result, options.results)
    return 0


def decoded(encoded: EncodedTensor) -> F32:
    """The weights that an encoded matrix stands for, float32[n_out, n_in]."""
    description = encoded.description
    arguments = weight_arguments(description, encoded.arrays)
    return _core.Weight(description.name, *description.shape, **arguments).dequantize()


def _quantised(ggml: Ggml, weights: F32, importance: F32, kind: GGMLQuantizationType) -> tuple[F32, int]:
    """Weights through one of llama.cpp's types, and its bytes."""
    n_out, n_in = weights.shape
    block, block_bytes = GGML_QUANT_SIZES[kind]
    merged = 1
    while (n_in * merged) % block:
        merged *= 2
    rows = np.ascontiguousarray(weights.reshape(n_out // merged, n_in * merged))
    weigh = np.tile(importance, merged)
    out = np.empty(weights.size // block * block_bytes, np.uint8)
    ggml.quantize_chunk(kind, rows.ctypes.data, out.ctypes.data, 0, *rows.shape, weigh.ctypes.data)
    return np.asarray(dequantize(out.reshape(rows.shape[0], -1), kind), np.float32).reshape(n_out, n_in), out.size


def _row(name: str, weights: F32, back: F32, size: int, importance: F32) -> dict[str, Any]:
    wide = importance.astype(np.float64)
    lost = float(np.einsum("oi,oi,i->", weights - back, weights - back, wide))
    whole = float(np.einsum("oi,oi,i->", weights, weights, wide))
    plain = float(np.linalg.norm(weights - back) / np.linalg.norm(weights))
    return {"name": name, "weights": weights.size, "bytes": size, "rel_l2_w": (lost / whole) ** 0.5, "rel_l2": plain}


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    errors = np.array([row["rel_l2_w"] for row in rows])
    return {
        "bits_per_weight": 8 * sum(row["bytes"] for row in rows) / sum(row["weights"] for row in rows),
        "rel_l2_w": float(np.sqrt(np.mean(errors**2))),
        "rel_l2_w_worst": float(errors.max()),
        "rel_l2": float(np.sqrt(np.mean([row["rel_l2"] ** 2 for row in rows]))),
    }


def _print(summary: dict[str, dict[str, float]]) -> None:
    from rich.table import Table
    from seeddelta.report.tables import make_console

    table = Table()
    table.add_column("type")
    for heading in ("bits per weight", "weighted error", "worst", "plain error"):
        table.add_column(heading, justify="right")
    for kind, values in sorted(summary.items(), key=lambda item: item[1]["bits_per_weight"]):
        table.add_row(
            kind, f"{values['bits_per_weight']:.3f}",
            *(f"{values[key]:.4f}" for key in ("rel_l2_w", "rel_l2_w_worst", "rel_l2")),
        )  # fmt: skip
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
