"""Proc-sparse weights: perplexity by fan-out and base, and products a second beside ggml's F16.

    seeddelta imatrix dense.gguf -f wiki.valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48
    python benchmarks/bench_proc_sparse.py quality --text wiki.test.txt --hessian cov.gguf --layers 10-19
    python benchmarks/bench_proc_sparse.py speed --reps 15

`quality` converts the tensors of `--target` in `--layers` and leaves all others as they are; differences from the dense
model are paired (the same tokens, scored by both). Every fan-out is built with every base scale; `--plain` adds builds
without the covariance. `speed` is one thread, CPU time, random weights: a product's time does not depend on them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import bench_kernels
import common
import numpy as np
import seeddelta
from seeddelta import BuildReport, _core
from seeddelta.report.tables import make_console

SHAPES = "1536x576,576x1536,8192x4096"
BLOCK = 32


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def build(options: Any, dense: Path, name: str, **recipe: Any) -> tuple[Path, BuildReport]:
    path = options.work / f"{dense.stem}-proc-{name}.seeddelta.gguf"
    saved = path.with_suffix(".json")
    if options.reuse and path.exists() and saved.exists():
        return path, BuildReport.model_validate_json(saved.read_text(encoding="utf-8"))
    print(f"build {path.name}", file=sys.stderr)
    common_options = {"layers": options.layers, "proc_target": options.target, "threads": options.threads or 0}
    made = seeddelta.Recipe(input=dense, output=path, report_json=saved, proc_sparse=True, **(common_options | recipe))
    return path, seeddelta.build(made)


def quality(options: Any) -> dict[str, Any]:
    dense = common.dense_model(options.dense, options.work)
    calibrations: dict[str, dict[str, Any]] = {"covariance": {"hessian": options.hessian}} if options.hessian else {}
    if options.plain or not calibrations:
        calibrations["plain"] = {}
    if options.imatrix:
        calibrations["imatrix"] = {"imatrix": options.imatrix}
    models: dict[str, tuple[Path, BuildReport]] = {}
    for calibration, recipe in calibrations.items():
        for fanout in numbers(options.fanouts):
            for scale in numbers(options.base_scales):
                name = f"{calibration}, fan-out {fanout:g}, base {scale:g}"
                share = {"proc_fanout": fanout if fanout < 1 else 1 << 16, "proc_base_scale": scale}
                models[name] = build(options, dense, f"{calibration}-{fanout:g}-{scale:g}", **share, **recipe)
    if not options.text:
        return {}
    comparison = seeddelta.evaluate(
        [dense, *(path for path, _ in models.values())], text=Path(options.text), chunks=options.chunks,
        threads=options.threads, reps=0, kl=False, progress=True,
    )  # fmt: skip
    rows = {"F16": {"ppl": _ppl(comparison.models[0])}}
    for (name, (_, report)), measured in zip(models.items(), comparison.models[1:], strict=True):
        assert measured.difference is not None
        errors = [tensor.metrics for tensor in report.tensors if tensor.metrics is not None]
        rows[name] = {
            "ppl": _ppl(measured),
            "change_percent": measured.difference.percent,
            "change_stderr": measured.difference.percent_stderr,
            "bits_per_weight": report.bits_per_weight,
            "bytes_of_dense": report.target_bytes_after / report.target_bytes_before,
            "trims": sum(tensor.trims for tensor in report.tensors),
            "rel_l2": statistics.mean(error.rel_l2 for error in errors),
            "rel_out": statistics.mean(error.rel_out or 0.0 for error in errors),
        }
    _print(rows, ("bytes_of_dense", "rel_l2", "rel_out", "ppl", "change_percent", "change_stderr"))
    settings = {key: getattr(options, key) for key in ("layers", "target", "chunks")} | {
        "text": Path(options.text).name
    }
    return {"settings": settings, "models": rows}


def _ppl(model: Any) -> float:
    assert model.perplexity is not None
    return float(model.perplexity.ppl)


def sparse_weight(n_out: int, n_in: int, fanout: float, scale: float, generator: Any) -> _core.Weight:
    """Random blocks and values."""
    blocks = -(-n_in // BLOCK)
    kept = max(1, round(min(fanout, 1) * blocks))
    chosen = np.argsort(generator.random((n_out, blocks)), axis=1) < kept
    base: dict[str, Any] = {"base_kind": 0, "base_block": BLOCK, "base_scale": scale} if scale else {"base_kind": 255}
    arrays = {
        "row_scale": np.ones(n_out, np.float16),
        "p_map": np.packbits(chosen, axis=1, bitorder="little"),
        "p_val": bench_kernels.aligned(generator.integers(-127, 128, (n_out, kept, BLOCK)).astype(np.int8)),
        "p_scale": np.ones(n_out, np.float16),
    }
    return _core.Weight("w", n_out, n_in, base_seed=1, **base, arrays=arrays)


def speed(options: Any) -> dict[str, Any]:
    ggml, shapes = bench_kernels.Ggml(), {}
    for text in options.shapes.split(","):
        n_out, n_in = map(int, text.split("x"))
        generator = np.random.default_rng(1)
        x = generator.standard_normal(n_in, dtype=np.float32)
        dense = generator.standard_normal((n_out, n_in), dtype=np.float32)
        products: dict[str, Any] = {
            name: bench_kernels.GgmlProduct(ggml, bench_kernels.GGML_TYPES[name], dense, x) for name in ("F16", "Q8_0")
        }
        memory = {"F16": 1.0, "Q8_0": 34 / 64}
        for fanout in numbers(options.fanouts):
            for scale in numbers(options.base_scales):
                weight = sparse_weight(n_out, n_in, fanout, scale, generator)
                name = f"fan-out {fanout:g}, base {scale:g}"
                products[name] = bench_kernels.SeedDeltaProduct(weight, x)
                memory[name] = weight.nbytes / (2 * n_out * n_in)
        calls = {name: bench_kernels.calibrate(product.seconds) for name, product in products.items()}
        times: dict[str, list[float]] = {name: [] for name in products}
        for _ in range(options.reps):  # in turns
            for name, product in products.items():
                times[name].append(product.seconds(calls[name]) / calls[name])
        base = statistics.median(times["F16"])
        shapes[text] = {
            name: {
                "microseconds": statistics.median(taken) * 1e6,
                "speed_of_f16": base / statistics.median(taken),
                "bytes_of_dense": memory[name],
                "samples": taken,
            }
            for name, taken in times.items()
        }
        print(text)
        _print(shapes[text], ("microseconds", "speed_of_f16", "bytes_of_dense"))
    return {"settings": {"reps": options.reps, "isa": _core.isa_active(), "threads": 1}, "shapes": shapes}


def _print(rows: dict[str, dict[str, Any]], columns: tuple[str, ...]) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.4g}" if column in row else "" for column in columns))
    make_console().print(table)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("suite", choices=("quality", "speed"))
    parser.add_argument("--fanouts", default="1,0.95,0.9,0.8,0.6", help="shares of the blocks (default: %(default)s)")
    parser.add_argument("--base-scales", default="0.05,0", help="default: %(default)s")
    parser.add_argument("--text", help="text file for the perplexity; without it models are only built")
    parser.add_argument("--chunks", type=int, default=16, help="chunks of the text (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads (default: all cores)")
    parser.add_argument("--layers", default="10-19", help="layers that are converted (default: %(default)s)")
    parser.add_argument("--target", default="mlp", help="mlp, attn or both (default: %(default)s)")
    parser.add_argument("--hessian", type=Path, help="covariance file of the original model")
    parser.add_argument("--imatrix", type=Path, help="imatrix of the original model, for builds with it alone")
    parser.add_argument("--plain", action="store_true", help="builds without calibration, too")
    parser.add_argument("--reuse", action="store_true", help="take models that are in --work")
    parser.add_argument("--shapes", default=SHAPES, help="rows x columns, for speed (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=11, help="repetitions, for speed (default: %(default)s)")
    options = parser.parse_args()
    result = quality(options) if options.suite == "quality" else speed(options)
    if not result:
        return 0
    name = options.name or f"proc-sparse-{options.suite}"
    common.save(name, {"benchmark": name} | result, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
