"""Perplexity and divergence from the dense model on WikiText-2's test text, at what each kind of weight costs.

    seeddelta imatrix -m dense.gguf -f wiki.valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 24
    python benchmarks/bench_quality.py --text wiki.test.txt --hessian cov.gguf

Rows: the dense model; SeedΔ's trellis at 4, 3 and 2 bits, and with feedback from the covariance of the inputs; the
same weights, dequantised to F16, in stock llama.cpp (the
run time is right when both agree); the plain base with a sparse residual (`--preset prng-coo`) at the same bits; and
llama.cpp's own types, quantised without an importance matrix. Bits count every byte of the block matrices. llama.cpp
falls back to other types where a row is no multiple of 256, so on small models its bits are higher than the names say.
"""

from __future__ import annotations

import sys
from pathlib import Path

import common
import seeddelta
from seeddelta.evaluate import Comparison
from seeddelta.report.tables import make_console

LLAMA = ("Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text file: WikiText-2's test.txt for our figures")
    parser.add_argument("--chunks", type=int, default=16, help="chunks (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads (default: all cores)")
    parser.add_argument("--bits", default="4,3,2", help="bits of the SeedΔ models (default: %(default)s)")
    parser.add_argument("--llama", default=",".join(LLAMA), help="llama.cpp's types (default: %(default)s)")
    parser.add_argument("--hessian", type=Path, help="covariance file of the dense model: adds builds with feedback")
    parser.add_argument("--presets", default="small,trellis-4,balanced", help="with --hessian (default: %(default)s)")
    options = parser.parse_args()

    dense = common.dense_model(options.dense, options.work)
    models = {"F16": dense}
    for bits in (float(text) for text in options.bits.split(",")):
        name = f"seeddelta-{bits:g}"
        models[name] = common.seeddelta_model(dense, options.work, name, bits=bits)
        models[f"{name}, dequantised"] = common.dequantized_model(models[name])
        coo = f"prng-coo-{bits:g}"
        models[coo] = common.seeddelta_model(dense, options.work, coo, preset="prng-coo", bits=bits)
    if options.hessian is not None:
        for preset in options.presets.split(","):
            name = f"{preset}, feedback"
            models[name] = common.seeddelta_model(
                dense, options.work, f"{preset}-feedback", preset=preset, hessian=options.hessian
            )
    for name in filter(None, options.llama.split(",")):
        models[name] = common.llama_model(dense, options.work, name)

    comparison = seeddelta.evaluate(
        list(models.values()),
        text=options.text,
        n_ctx=options.ctx,
        chunks=options.chunks,
        threads=options.threads,
        reps=0,
        progress=True,
    )
    _print(list(models), comparison)
    result = {
        "benchmark": "quality",
        "settings": dict(comparison.settings) | {"text": options.text.name},
        "models": {name: report.to_dict() for name, report in zip(models, comparison.models, strict=True)},
    }
    common.save(options.name or "quality", result)
    return 0


def _short(value: float) -> str:
    """A broken model's perplexity has many digits."""
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.1e}"


def _print(names: list[str], comparison: Comparison) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("model")
    for heading in ("bits a weight", "file, MB", "perplexity", "change (paired)", "KL, nats", "same top"):
        table.add_column(heading, justify="right")
    for name, report in zip(names, comparison.models, strict=True):
        change, kl = report.difference, report.divergence
        assert report.perplexity is not None
        table.add_row(
            name,
            f"{report.size.bits_per_weight:.2f}",
            f"{report.size.file_bytes / 1e6:.1f}",
            f"{_short(report.perplexity.ppl)} ± {_short(report.perplexity.stderr)}",
            "" if change is None else f"{_short(change.percent)}% ± {_short(change.percent_stderr)}",
            "" if kl is None else f"{kl.mean:.4f} ± {kl.stderr:.4f}",
            "" if kl is None else f"{kl.same_top_percent:.1f}%",
        )
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
