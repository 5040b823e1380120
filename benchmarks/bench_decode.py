"""Tokens a second of whole models: SeedΔ at 2, 3 and 4 bits beside F16 and llama.cpp's own quantised types.

    python benchmarks/bench_decode.py --threads 1,2 --reps 5

Every model has its own process, and they take turns: a repetition measures each model once at each number of threads,
so that a machine that slows down meanwhile treats all alike. Medians are shown and all samples saved.
"""

from __future__ import annotations

import sys

import common
import seeddelta
from seeddelta.cli._options import parse_threads
from seeddelta.report.tables import make_console, speed_table

MODELS = ("F16", "seeddelta-4", "seeddelta-3", "seeddelta-2", "Q8_0", "Q4_0", "Q4_K_M", "Q3_K_M", "Q2_K")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, with commas (default: %(default)s)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=64, help="tokens to generate (default: %(default)s)")
    options = parser.parse_args()

    dense = common.dense_model(options.dense, options.work)
    models = common.make_models(options.models.split(","), dense, options.work)
    comparison = seeddelta.evaluate(
        list(models.values()),
        threads=parse_threads(options.threads),
        reps=options.reps,
        n_prompt=options.prompt,
        n_gen=options.gen,
        progress=True,
    )
    reports = dict(zip(models, comparison.models, strict=True))
    make_console().print(speed_table([(report.path, report.speed) for report in comparison.models]))
    result = {
        "benchmark": "decode",
        "settings": dict(comparison.settings),
        "models": {name: report.to_dict() for name, report in reports.items()},
    }
    common.save(options.name or "decode", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
