"""Weights encoded a second, error feedback included, and the error of the outputs, by code and threads.

    python benchmarks/bench_encode.py --hessian cov.gguf --layers 10-11
    python benchmarks/bench_encode.py --hessian cov.gguf --bits 1,2,3 --codes "lanes, fast;lanes" --name encode-rates

Whole builds of some layers: reading, feedback, search, packing. The rate is that of the encoder alone (`seconds` of the
build's report), per second of the clock; the builds of one row of the table take turns. The error is the squared one of
the outputs under the covariance (`rel_out` of the report), over that of the first code at the same rate, a mean over
the matrices.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import common
import seeddelta
from seeddelta.report.tables import make_console

CODES: dict[str, dict[str, Any]] = {
    "lanes, fast": {"effort": "fast"},
    "lanes": {},
    "lanes, high": {"effort": "high"},
}


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--hessian", type=Path, required=True, help="covariance file of the original model")
    parser.add_argument("--layers", default="10-11", help="layers to encode (default: %(default)s)")
    parser.add_argument("--bits", default="4", help="bits per weight, with commas (default: %(default)s)")
    parser.add_argument("--codes", default=";".join(CODES), help="with semicolons (default: %(default)s)")
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--reps", type=int, default=3, help="builds of each (default: %(default)s)")
    options = parser.parse_args()

    dense = common.dense_model(options.dense, options.work)
    rows = [row for bits in map(float, options.bits.split(",")) for row in measure(dense, bits, options)]
    _print(rows)
    settings = {"dense": dense.name, "layers": options.layers, "reps": options.reps}
    common.save(options.name or "encode", {"benchmark": "encode", "settings": settings, "rows": rows}, options.results)
    return 0


def measure(dense: Path, bits: float, options: Any) -> list[dict[str, Any]]:
    """Rows of all codes at one rate."""
    rows: list[dict[str, Any]] = []
    first: list[float] = []
    for code in options.codes.split(";"):
        samples: dict[int, list[float]] = {int(text): [] for text in options.threads.split(",")}
        errors: list[float] = []
        for _ in range(options.reps):
            for threads, rates in samples.items():
                report = seeddelta.build(
                    seeddelta.Recipe(
                        input=dense, output=options.work / "encoded.gguf", layers=options.layers, bits=bits,
                        threads=threads, hessian=options.hessian, no_checkpoint=True, **CODES[code],
                    ),
                    progress=False,
                )  # fmt: skip
                rates.append(report.weights_converted / sum(tensor.seconds for tensor in report.tensors))
                errors = [tensor.metrics.rel_out**2 for tensor in report.tensors if tensor.metrics.rel_out is not None]
        first = first or errors
        error = statistics.mean(own / other for own, other in zip(errors, first, strict=True))
        rows += [
            {"code": code, "bits": bits, "threads": threads, "weights_per_second": statistics.median(rates),
             "samples": rates, "error": error}
            for threads, rates in samples.items()
        ]  # fmt: skip
    return rows


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("code", "bits", "threads", "million weights/s", "a thread", "squared error"):
        table.add_column(heading, justify="right")
    for row in rows:
        rate = row["weights_per_second"] / 1e6
        speed = (f"{rate:.3f}", f"{rate / row['threads']:.3f}")
        table.add_row(row["code"], f"{row['bits']:g}", str(row["threads"]), *speed, f"{row['error']:.3f}")
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
