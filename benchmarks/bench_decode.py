"""Tokens a second of whole models: SeedΔ at 2 to 6 bits beside F16 and llama.cpp's own quantised types.

    python benchmarks/bench_decode.py --threads 1,2 --reps 5
    python benchmarks/bench_decode.py --shape 1b --threads 1,2 --depth 0,2048 --together 5

Every model has its own process, and they take turns: a repetition measures each model once at each number of threads,
so that a machine that slows down meanwhile treats all alike. Medians are shown; all samples are saved, with a figure.
`--shape` takes models of random weights (synthetic.py), whose layers are too large for the caches. Where not all models
fit into memory at once, `--together` measures them in groups; the first model is in every group, and what is relative
to it pairs the measurements of one turn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import seeddelta
import synthetic
from seeddelta.evaluate import ModelReport
from seeddelta.evaluate.speed import Speed, summary
from seeddelta.report.figures import draw_speed
from seeddelta.report.tables import make_console, speed_table

MODELS = ("F16", *common.SEEDDELTA, "Q8_0", "Q6_K", "Q5_K_M", "Q4_0", "Q4_K_M", "Q3_K_M", "Q2_K")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--shape", choices=synthetic.SHAPES, help="random weights of this shape, not an original model")
    parser.add_argument(
        "--models",
        help=f"some of them, with commas (default: {','.join(MODELS)}; with --shape {','.join(synthetic.MODELS)})",
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=128, help="tokens to generate (default: %(default)s)")
    parser.add_argument("--depth", default="0", help="tokens in the KV cache, with commas (default: %(default)s)")
    parser.add_argument("--together", type=int, help="models in memory at once, 2 or more (default: all)")
    options = parser.parse_args()
    if options.reps < 1 or (options.together is not None and options.together < 2):
        parser.error("--reps must be 1 or more, --together 2 or more")

    names = options.models.split(",") if options.models else MODELS if options.shape is None else synthetic.MODELS
    models = synthetic.chosen_models(names, options)
    settings: dict[str, Any] = {
        "threads": common.parse_threads(options.threads),
        "depths": [int(depth) for depth in options.depth.split(",")],
        "reps": options.reps,
        "n_prompt": options.prompt,
        "n_gen": options.gen,
    }
    found = measure(models, options.together or len(models), settings)
    reports = pooled(found)

    make_console().print(speed_table([(Path(name), report.speed) for name, report in reports.items()]))
    name = options.name or ("decode" if options.shape is None else f"decode-{options.shape}")
    result = {
        "benchmark": "decode",
        "settings": settings | {"shape": options.shape, "groups": [list(group) for group in found]},
        "models": {name: report.to_dict() | {"relative": relative(name, found)} for name, report in reports.items()},
    }
    path = common.save(name, result, options.results)
    machine = common.machine()
    title = (
        f"{next(iter(models.values())).stem} and others on {machine['cpu']} ({machine['isa']})\n"
        f"{options.prompt} tokens of prompt, {options.gen} generated, {options.reps} repetitions"
    )
    draw_speed([(name, report.speed) for name, report in reports.items()], title=title).savefig(
        path.with_suffix(".png"), dpi=150
    )
    return 0


Group = dict[str, ModelReport]


def measure(models: dict[str, Path], together: int, settings: dict[str, Any]) -> list[Group]:
    """Reports of the models, in groups of up to `together` that all begin with the first model."""
    first, *others = models
    size = max(1, together - 1)  # beside the first one
    groups = [[first, *others[at : at + size]] for at in range(0, len(others), size)] or [[first]]
    found = []
    for group in groups:
        comparison = seeddelta.evaluate([models[name] for name in group], progress=True, **settings)
        found.append(dict(zip(group, comparison.models, strict=True)))
    return found


def pooled(groups: Sequence[Group]) -> Group:
    """One report a model: that of the first one has the measurements of all groups, one after the other."""
    reports: Group = {}
    for group in groups:
        for name, report in group.items():
            if name in reports:
                both = zip(reports[name].speed, report.speed, strict=True)
                speed = (
                    replace(a, prompt=a.prompt + b.prompt, generation=a.generation + b.generation) for a, b in both
                )
                report = replace(reports[name], speed=tuple(speed))
            reports[name] = report
    return reports


def relative(name: str, groups: Sequence[Group]) -> list[dict[str, Any]] | None:
    """Speed divided by that of the first model in the same turn; None for the first model."""
    group = next(group for group in groups if name in group)
    first = next(iter(group))
    if name == first:
        return None
    return [_ratios(ours, theirs) for ours, theirs in zip(group[name].speed, group[first].speed, strict=True)]


def _ratios(ours: Speed, theirs: Speed) -> dict[str, Any]:
    def ratio(part: str) -> dict[str, Any] | None:
        return summary(tuple(a / b for a, b in zip(getattr(ours, part), getattr(theirs, part), strict=True)))

    return {
        "threads": ours.threads,
        "depth": ours.depth,
        "prompt": ratio("prompt"),
        "generation": ratio("generation"),
    }


if __name__ == "__main__":
    sys.exit(main())
