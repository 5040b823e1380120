"""What skipping inputs costs and gives: perplexity of many settings, then tokens per second of some, in turns.

    python benchmarks/bench_skipping.py --text wiki.test.txt --chunks 64
    python benchmarks/bench_skipping.py --parts speed --threads 1,2 --reps 5
    python benchmarks/bench_skipping.py --seeddelta columns.seeddelta.gguf --skip skip.yaml --text wiki.test.txt
    python benchmarks/bench_skipping.py --shape 1b --skip skip.yaml --threads 1,2

Quality: the F16 model by columns with inputs skipped in prompts too, beside llama.cpp's own F16 on the same tokens;
with --seeddelta that file instead, beside itself without skipping, and llama.cpp's Q4_0. A file of seeddelta sparsify
(--skip) adds settings. Speed: generation only, since prompts are computed whole; every model has its own process and
they take turns. --shape: speed alone, of random weights in that shape, with the fractions that the --skip file keeps of
each kind of input on average. A run adds to the result file: a part that is not asked for stays as it was.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import common
import seeddelta
import synthetic
from seeddelta.evaluate import ModelReport
from seeddelta.settings.skip_file import read_skip_file

Config = dict[str, Any]

F16 = {"columns": "f16"}
DEFAULT = {"kwta": {}, "skip_prompt": True}
LOW = {"ffn_down": 0.5, "ffn_gate": 0.7, "attn": 0.7}


def kwta(k: Any, **more: Any) -> Config:
    return {"kwta": {"k": k, **more}, "skip_prompt": True}


def pack(eps: float, **more: Any) -> Config:
    return {"state_pack_mlp": {"mode": "ternary", "eps": eps, "rho": 1.0, **more}, "skip_prompt": True}


QUALITY: dict[str, Config] = {
    "f16, all": F16,
    **{f"f16, down {k}": F16 | kwta({"ffn_down": k}) for k in (0.6, 0.5, 0.4, 0.3)},
    **{f"f16, down {k}, magnitude": F16 | kwta({"ffn_down": k}, score="magnitude") for k in (0.5, 0.4)},
    **{f"f16, down 0.5, blocks of {n}": F16 | kwta({"ffn_down": 0.5}, block=n) for n in (16, 32, 64)},
    "f16, down 0.5, renormalised": F16 | kwta({"ffn_down": 0.5}, renormalize=True),
    "f16, down 0.5, every 2nd token": F16 | kwta({"ffn_down": 0.5}, duty=2),
    **{f"f16, gate and up {k}": F16 | kwta({"ffn_gate": k}) for k in (0.8, 0.7, 0.6)},
    "f16, gate and up 0.7, magnitude": F16 | kwta({"ffn_gate": 0.7}, score="magnitude"),
    **{f"f16, q, k and v {k}": F16 | kwta({"attn_q": k}) for k in (0.8, 0.7, 0.6)},
    **{f"f16, attn_output {k}": F16 | kwta({"attn_output": k}) for k in (0.7, 0.5)},
    "f16, MLP": F16 | kwta({"ffn_down": 0.5, "ffn_gate": 0.7}),
    "f16, default": F16 | DEFAULT,
    "f16, default, magnitude": F16 | DEFAULT | {"kwta": {"score": "magnitude"}},
    "f16, down 0.5, others 0.7": F16 | kwta(LOW),
    "f16, down 0.5, others 0.7, magnitude": F16 | kwta(LOW, score="magnitude"),
    **{f"f16, all {k}": F16 | kwta(k) for k in (0.8, 0.6, 0.5)},
    "f16, state-pack 0.05": F16 | pack(0.05),
    "f16, state-pack 0.3 of gamma": F16 | pack(0.0, relative=0.3),
    **{f"f16, events {t}": F16 | {"event": {"delta_theta": t}, "skip_prompt": True} for t in (0.1, 0.2, 0.3)},
}
SPEED = ("f16, all", "f16, default", "f16, all 0.5")
STOCK = ("F16", "Q8_0", "Q4_0", "Q4_K_M")
# of a SeedΔ file, whose own layout says what can be skipped
SEEDDELTA: dict[str, Config] = {
    "SeedΔ, all": {},
    **{f"SeedΔ, down {k}": kwta({"ffn_down": k}) for k in (0.6, 0.5, 0.4)},
    "SeedΔ, MLP": kwta({"ffn_down": 0.5, "ffn_gate": 0.7}),
    "SeedΔ, default": DEFAULT,
    "SeedΔ, all 0.5": kwta(0.5),
}
SEEDDELTA_SPEED = ("SeedΔ, all", "SeedΔ, default", "SeedΔ, MLP", "SeedΔ, all 0.5")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--text", type=Path, help="text for the perplexity (quality)")
    parser.add_argument("--parts", default="quality,speed", help="quality, speed or both (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=16, help="chunks of 512 tokens (default: %(default)s)")
    parser.add_argument("--only", help="part of the names of the settings to measure (default: all)")
    parser.add_argument("--seeddelta", type=Path, help="SeedΔ file in column layout, of the original model")
    parser.add_argument("--rows", type=Path, help="the same model in row layout, which can skip nothing")
    parser.add_argument("--shape", choices=synthetic.SHAPES, help="speed of random weights in this shape")
    parser.add_argument(
        "--skip", type=Path, help="file of seeddelta sparsify for the model: settings by K and threshold"
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="repetitions of the speed (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=128, help="tokens to generate (default: %(default)s)")
    options = parser.parse_args()
    parts = ["speed"] if options.shape else options.parts.split(",")
    if "quality" in parts and options.text is None:
        parser.error("the quality needs --text")
    if options.shape and options.skip is None:
        parser.error("--shape needs --skip, for the fractions")
    if options.shape:
        name = options.name or f"skipping-{options.shape}"
        settings, stock = shape_settings(options)
    else:
        name = options.name or ("skipping-seeddelta" if options.seeddelta else "skipping")
        dense = common.dense_model(options.dense, options.work)
        settings = settings_of(dense, options)
        stock = {f"llama.cpp {key}": path for key, path in common.make_models(STOCK, dense, options.work).items()}
    settings = [one for one in settings if (options.only or "") in one.name]
    result = stored(options.results / f"{name}.json")
    if "quality" in parts:
        first = "SeedΔ, all" if options.seeddelta else "llama.cpp F16"
        others = ["llama.cpp Q4_0"] if options.seeddelta else []
        found = quality(first, options.seeddelta or dense, {key: stock[key] for key in others}, settings, options)
        result["quality"] = result.get("quality", {}) | found
        common.save(name, result, options.results)
    if "speed" in parts:
        chosen = [one for one in settings if one.timed]
        result["speed"] = speed(stock, chosen, options)
    path = common.save(name, result, options.results)
    figure(result, path.with_suffix(".png"))
    return 0


def stored(path: Path) -> dict[str, Any]:
    """What earlier runs have measured."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"benchmark": "skipping"}
    return {key: value for key, value in found.items() if key != "machine"}


@dataclass(frozen=True)
class Setting:
    """A model and what it skips. `timed`: its speed is measured, too."""

    name: str
    model: Path
    config: Config
    timed: bool

    @property
    def options(self) -> Config:
        return {"config": self.config} if self.config else {}


def settings_of(dense: Path, options: argparse.Namespace) -> list[Setting]:
    """Those of the SeedΔ file, else those of the original model by columns."""
    known, timed = (SEEDDELTA, SEEDDELTA_SPEED) if options.seeddelta else (QUALITY, SPEED)
    kind, layout = ("SeedΔ", {}) if options.seeddelta else ("f16", F16)
    model = options.seeddelta or dense
    settings = [Setting(name, model, config, name in timed) for name, config in known.items()]
    for select in ("topk", "threshold") if options.skip else ():
        file = {"kwta": {"file": str(options.skip), "select": select}, "skip_prompt": True}
        settings.append(Setting(f"{kind}, calibrated, {select}", model, layout | file, True))
    if options.rows:
        settings.append(Setting("SeedΔ by rows, all", options.rows, {}, True))
    return settings


def shape_settings(options: argparse.Namespace) -> tuple[list[Setting], dict[str, Path]]:
    """Every way to store the columns, whole and with the average fractions of the --skip file; llama.cpp's types."""
    names = ("F16", "Q8_0", "Q4_0", "Q4_K", "seeddelta-4", synthetic.COLUMNS)
    models = synthetic.make_models(names, options.shape, options.work)
    kept = defaultdict(list)
    for name, skip in read_skip_file(options.skip).inputs.items():
        kept[re.sub(r"blk\.\d+\.(\w+)\.weight", r"\1", name)].append(skip.keep)
    fractions = {kind: round(mean(values), 4) for kind, values in kept.items()}
    settings = []
    for kind, layout in (("f16", F16), ("SeedΔ", {})):
        model = models[synthetic.COLUMNS if kind == "SeedΔ" else "F16"]
        settings.append(Setting(f"{kind}, all", model, layout, True))
        settings.append(Setting(f"{kind}, kept as calibrated", model, layout | kwta(fractions), True))
    settings.append(Setting("SeedΔ by rows, all", models["seeddelta-4"], {}, True))
    return settings, {f"llama.cpp {name}": models[name] for name in names[:4]}


def quality(
    first: str, model: Path, others: dict[str, Path], settings: list[Setting], options: argparse.Namespace
) -> dict[str, Any]:
    """Perplexity, its change and divergence from the first model as it is, and the share of inputs computed with."""
    chosen = [one for one in settings if one.name != first]
    names = [first, *others, *(one.name for one in chosen)]
    configs = {one.name: one.config for one in chosen}
    comparison = seeddelta.evaluate(
        [model, *others.values(), *(one.model for one in chosen)],
        text=options.text,
        chunks=options.chunks,
        threads=common.parse_threads(options.threads),
        reps=0,
        options=[{}, *({} for _ in others), *(one.options for one in chosen)],
        progress=True,
    )
    rows = {}
    for name, report in zip(names, comparison.models, strict=True):
        row = rows[name] = {"config": configs.get(name)} | quality_row(report)
        change = "" if row["change_percent"] is None else f"{row['change_percent']:+7.2f}%"
        print(f"{name:36} ppl {row['ppl']:8.3f} {change:8}  active {row['active']:.3f}")
    return rows


def quality_row(report: ModelReport) -> dict[str, Any]:
    """What a model that skips costs: perplexity, its change, divergence, the share of inputs computed with."""
    assert report.perplexity is not None
    metrics = dict(report.metrics)
    units = metrics.get("seeddelta.active_inputs", 0) + metrics.get("seeddelta.skipped_inputs", 0)
    return {
        "chunks": report.perplexity.chunks,
        "ppl": report.perplexity.ppl,
        "stderr": report.perplexity.stderr,
        "change_percent": None if report.difference is None else report.difference.percent,
        "change_stderr": None if report.difference is None else report.difference.percent_stderr,
        "kl": None if report.divergence is None else report.divergence.mean,
        "active": metrics["seeddelta.active_inputs"] / units if units else 1.0,
        "metrics": skipping_metrics(metrics),
    }


def skipping_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Those of what chooses inputs."""
    return {key: value for key, value in metrics.items() if key.startswith(("kwta.", "pack.", "event."))}


def speed(stock: dict[str, Path], settings: list[Setting], options: argparse.Namespace) -> dict[str, Any]:
    """Generation; skipping as in the quality, which is on for single tokens whatever `skip_prompt` says."""
    comparison = seeddelta.evaluate(
        [*stock.values(), *(one.model for one in settings)],
        threads=common.parse_threads(options.threads),
        reps=options.reps,
        n_prompt=0,
        n_gen=options.gen,
        options=[*({} for _ in stock), *(one.options for one in settings)],
        progress=True,
    )
    rows: dict[str, Any] = {}
    for name, report in zip([*stock, *(one.name for one in settings)], comparison.models, strict=True):
        rows[name] = {
            "speed": [one.to_dict() for one in report.speed],
            "resident": report.memory.resident,
            "metrics": skipping_metrics(report.metrics),
        }
        medians = " ".join(f"{one['threads']}: {one['generation']['median']:6.1f}" for one in rows[name]["speed"])
        print(f"{name:36} tokens/s by threads {medians}")
    return rows


def figure(result: dict[str, Any], path: Path) -> None:
    """Change of the perplexity over the share of inputs computed with, and tokens per second."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    drawing, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    for name, row in result.get("quality", {}).items():
        if row["change_percent"] is not None and row["change_percent"] < 30:
            left.plot(row["active"], row["change_percent"], "o", color="C0" if name.startswith("f16") else "C1")
            left.annotate(
                name, (row["active"], row["change_percent"]), fontsize=6, xytext=(3, 2), textcoords="offset points"
            )
    left.axhline(2, color="grey", linewidth=0.6)
    left.set(xlabel="share of all inputs computed with", ylabel="change of the perplexity, %")
    rows = result.get("speed", {})
    threads = [one["threads"] for row in list(rows.values())[:1] for one in row["speed"]]
    for offset, count in enumerate(threads):
        medians = [row["speed"][offset]["generation"]["median"] for row in rows.values()]
        places = [place + 0.4 * offset for place in range(len(rows))]
        right.barh(places, medians, height=0.4, label=f"{count} threads")
    right.set_yticks(range(len(rows)), list(rows), fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="tokens per second, generation")
    if threads:
        right.legend()
    machine = common.machine()
    drawing.suptitle(f"Skipping inputs, {machine['cpu']} ({machine['isa']})")
    drawing.savefig(path, dpi=130)
    plt.close(drawing)


if __name__ == "__main__":
    sys.exit(main())
