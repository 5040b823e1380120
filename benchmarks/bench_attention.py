"""Attention of single tokens: llama.cpp's, ours over all keys, and ours over keys that their bits choose.

    python benchmarks/bench_attention.py                                   # all parts, about an hour
    python benchmarks/bench_attention.py --parts speed --depth 0,2048,8000 --threads 1,2 --reps 5
    python benchmarks/bench_attention.py --parts recall,quality --prefix 4096 --scored 512 --text wiki.test.txt

speed     tokens per second at several depths of the KV cache, settings taking turns
long      the same with random weights of the shape of Llama 3.2 1B and a random cache, up to 32768 tokens
choice    softmax mass and recall@64 of the positions that bits and pages would choose for real queries (in NumPy)
windows   what a token could reuse of an earlier one's attention, and what events reuse, of real queries
error     distance from float64 of the attention's output for the keys of a text
heads     the same for each KV head of the default settings: which of them need more than the others
recall    share of the softmax mass in the chosen keys, and error of the output, along the exact model's text
quality   perplexity of the tokens behind `--prefix`, decoded one by one; added to the settings of the result file;
          with ", no flash attention" behind its name a setting is that without flash attention
needles   lines in a text are asked for, at all depths: how often they are said, and how often as exact attention does
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
import synthetic
from attention_choice import capture, recall_curves
from attention_models import EVENTS, NO_FLASH, QUALITY, SPEED, SPEED_EVENTS, Prefix, opened, restore, runtime_of
from attention_needles import needles
from attention_quality import quality
from attention_windows import reuse, thresholds
from cache_state import fill_cache
from ggml_attention import GgmlAttention
from seeddelta import _core
from seeddelta.evaluate.speed import collect, measure
from seeddelta.report.figures import draw_speed
from seeddelta.session import read_text, tokenize

NEEDLES = ("exact", "llama.cpp", "binary 1/4", "ternary 1/4", "binary 1/8", "ternary 1/8", "ternary 1/16")
BUDGETS = (0.02, 0.04, 0.08, 0.16, 0.32)
RECALL: dict[str, dict[str, Any]] = {
    "binary": {"mode": "binary"},
    "binary, a gamma for each key": {"mode": "binary", "gamma_chunk": 1},
    "binary, popcount": {"mode": "binary", "popcount": True},
    "ternary, eps 0.5": {"mode": "ternary", "eps": 0.5},
    "ternary, eps 0.8": {"mode": "ternary", "eps": 0.8},
    "ternary, eps 1.2": {"mode": "ternary", "eps": 1.2},
    "ternary, popcount": {"mode": "ternary", "popcount": True},
}


def _options() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--parts",
        default="speed,long,choice,windows,error,heads,recall,quality,needles",
        help="default: %(default)s",
    )
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--depth", default="0,1024,2048,4096,8000", help="of speed (default: %(default)s)")
    parser.add_argument("--long-depth", default="1024,8192,32768", help="of the part long (default: %(default)s)")
    parser.add_argument("--shape", choices=synthetic.SHAPES, default="1b", help="of long (default: %(default)s)")
    parser.add_argument("--long-model", default="Q8_0", help="type of its weights (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--gen", type=int, default=64, help="tokens a measurement of speed (default: %(default)s)")
    parser.add_argument(
        "--text", type=Path, help="text of choice, recall, quality and needles (default: Python's help texts)"
    )
    parser.add_argument("--prefix", type=int, default=4096, help="tokens before those measured (default: %(default)s)")
    parser.add_argument("--scored", type=int, default=1024, help="tokens of quality (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=32, help="tokens of recall (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="first token of the text (default: %(default)s)")
    parser.add_argument(
        "--against", default="llama.cpp", help="settings of quality to compare with (default: %(default)s)"
    )
    parser.add_argument("--settings", help="of speed, quality and needles, with semicolons (default: all)")
    parser.add_argument(
        "--no-flash-attention", action="store_true",
        help="of speed and long: every setting without flash attention (of quality: add it to a setting's name)",
    )  # fmt: skip
    parser.add_argument("--haystacks", type=int, default=4, help="texts of needles a length (default: %(default)s)")
    parser.add_argument("--lengths", default="2048,4096,8000", help="of the texts of needles (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = _options()
    dense = common.dense_model(options.dense, options.work)
    threads = [int(count) for count in options.threads.split(",")]

    def text() -> Path:
        return options.text or common.pydoc_text(options.work)

    def settings(default: Iterable[str]) -> list[str]:
        return options.settings.split(";") if options.settings else list(default)

    parts = {
        "speed": lambda path: speed(dense, options, threads, path),
        "long": lambda path: long_contexts(options, threads, path),
        "choice": lambda path: choice(dense, options, text(), threads[-1], path),
        "windows": lambda path: windows(dense, options, text(), threads[-1]),
        "error": lambda path: error(dense, options, text(), threads[-1]),
        "heads": lambda path: heads(dense, options, text(), threads[-1]),
        "recall": lambda path: recall(dense, options, text(), threads[-1], path),
        "quality": lambda path: quality(
            dense, options, text(), threads[-1], path.with_suffix(".json"), settings([*QUALITY, *EVENTS])
        ),
        "needles": lambda path: needles(
            dense, options, text(), threads[-1], path.with_suffix(".json"), settings(NEEDLES)
        ),
    }
    for name in options.parts.split(","):
        target = f"{options.name or 'attention'}-{name}"
        found = parts[name](options.results / f"{target}.png")
        common.save(target, {"benchmark": f"attention {name}", "settings": vars_of(options)} | found, options.results)
    return 0


def vars_of(options: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def speed(dense: Path, options: Any, threads: list[int], path: Path) -> dict[str, Any]:
    configs = {name: runtime_of(fields, {}) for name, fields in SPEED.items()}
    configs |= {name: {"event": EVENTS[name] | {"target": "kv"}} for name in SPEED_EVENTS}
    configs = {name: config | {"force": True} for name, config in configs.items()}
    if options.settings:
        configs = {name: configs[name] for name in options.settings.split(";")}
    flash = {"flash_attn": not options.no_flash_attention}
    each: list[dict[str, Any]] = [flash | {"config": config} for config in configs.values()]
    names = [name + NO_FLASH * options.no_flash_attention for name in configs]
    depths = [int(depth) for depth in options.depth.split(",")]
    comparison = seeddelta.evaluate(
        [dense] * len(configs), options=each, threads=threads, reps=options.reps, n_prompt=0, n_gen=options.gen,
        depths=depths, progress=True,
    )  # fmt: skip
    reports = dict(zip(names, comparison.models, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_speed([(name, report.speed) for name, report in reports.items()], title="Generation at depth").savefig(
        path, dpi=150
    )
    for name, report in reports.items():
        for found in report.speed:
            print(f"{name:38} {found.threads} threads, depth {found.depth:5}: {np.median(found.generation):6.1f} t/s")
    return {"models": {name: [found.to_dict() for found in report.speed] for name, report in reports.items()}}


LONG = ("llama.cpp", "exact", "ternary 1/4", "ternary 1/16")


def long_contexts(options: Any, threads: list[int], path: Path) -> dict[str, Any]:
    """A process for all settings, each with a cache of its own; measurements take turns."""
    (model,) = synthetic.make_models([options.long_model], options.shape, options.work).values()
    depths = sorted((int(depth) for depth in options.long_depth.split(",")), reverse=True)
    n_ctx = -(-(depths[0] + options.gen) // 256) * 256
    settings = [name + NO_FLASH * options.no_flash_attention for name in LONG]
    # random keys: their error says nothing. A model of two layers has no other than exact ones by default
    gates = {"gap": 1e9} | ({"layers": ""} if synthetic.SHAPES[options.shape].n_layers < 3 else {})
    with ExitStack() as stack:
        models = {}
        for name in settings:
            models[name], _ = stack.enter_context(opened(model, name, threads[-1], n_ctx, gates))
            fill_cache(models[name], depths[0])
        samples: dict[tuple[str, int, int], list[Any]] = {}
        for depth in depths:
            for rep in range(-1, options.reps):  # the first is not counted
                for count in threads:
                    for name, llm in models.items():
                        found = measure(llm, n_prompt=0, n_gen=options.gen, threads=count, depth=depth)
                        if rep >= 0:
                            samples.setdefault((name, count, depth), []).append(found)
    speeds: dict[str, list[Any]] = {name: [] for name in settings}
    for (name, count, depth), found in sorted(samples.items(), key=lambda item: item[0][1:]):
        speeds[name].append(collect(found, threads=count, n_prompt=0, n_gen=options.gen, depth=depth))
        print(f"{name:38} {count} threads, depth {depth:5}: {np.median(speeds[name][-1].generation):6.2f} t/s")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_speed(list(speeds.items()), title=f"Generation at depth, {model.stem}").savefig(path, dpi=150)
    return {"model": model.name, "models": {name: [s.to_dict() for s in found] for name, found in speeds.items()}}


def first_tokens(dense: Path, options: Any, text: Path) -> Any:
    with opened(dense, None, 1, 256) as (llm, _):
        return tokenize(llm, read_text(text))[: options.prefix + options.queries]


def error(dense: Path, options: Any, text: Path, threads: int) -> dict[str, Any]:
    """Distance of the last query's output from that in float64, with the keys and values of a text."""
    q, k, v = capture(dense, first_tokens(dense, options, text), options.queries, threads)
    mask = np.zeros(k.shape[2], np.float16)
    distances: dict[str, list[float]] = {}
    for query, keys, values in zip(q[-1], k.swapaxes(1, 2), v.swapaxes(1, 2), strict=True):
        query, group = np.ascontiguousarray(query), query.shape[0] // keys.shape[1]
        keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        scores = np.einsum("hd,nhd->hn", query.astype(float), keys.astype(float).repeat(group, 1))
        weights = np.exp(scores - scores.max(1, keepdims=True))
        true = np.einsum("hn,nhd->hd", weights / weights.sum(1, keepdims=True), values.astype(float).repeat(group, 1))
        outputs = {"exact": _core.AttentionRun()(query, keys, values, mask, scale=1.0)[0]}
        for name, of in (("llama.cpp", values), ("llama.cpp, values in float32", values.astype(np.float32))):
            operation = GgmlAttention(query, keys, of, 1.0)
            outputs |= {f"{name}, {count} threads": operation(count) for count in (1, 2)}
            operation.close()
        for name, output in outputs.items():
            relative = np.linalg.norm(output.reshape(true.shape) - true, axis=1) / np.linalg.norm(true, axis=1)
            distances.setdefault(name, []).extend(relative.tolist())
    for name, found in distances.items():
        print(f"{name:40} mean {np.mean(found):.2e}, largest {np.max(found):.2e} of {len(found)} heads")
    return {"models": {name: {"mean": float(np.mean(of)), "max": max(of)} for name, of in distances.items()}}


def choice(dense: Path, options: Any, text: Path, threads: int, path: Path) -> dict[str, Any]:
    tokens = first_tokens(dense, options, text)
    q, k, _ = capture(dense, tokens, options.queries, threads)
    curves = recall_curves(q, k)
    for name, points in curves.items():
        for point in points:
            print(f"{name:40}", " ".join(f"{key} {value:.3f}" for key, value in point.items()))
    panels = {"recall": "share of the true 64 largest scores", "mass": "softmax mass kept"}
    draw(curves, panels, path)
    return {"curves": curves}


def windows(dense: Path, options: Any, text: Path, threads: int) -> dict[str, Any]:
    captured = capture(dense, first_tokens(dense, options, text), options.queries, threads)
    return {"reuse": reuse(*captured), "thresholds": thresholds(*captured)}


def draw(curves: dict[str, list[dict[str, float]]], panels: dict[str, str], path: Path) -> None:
    """Curves over the share of the positions attended to, a panel for each quantity."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    for panel, (key, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for number, (name, points) in enumerate(curves.items()):
            style = ("-", "--", ":")[number // 10]
            x, y = ([p[of] for p in points] for of in ("density", key))
            panel.plot(x, y, style, marker="o", markersize=3, label=name)
        panel.set_xscale("log")
        panel.set_xlabel("share of the positions attended to")
        panel.set_ylabel(label)
        panel.grid(linewidth=0.4)
        panel.legend(fontsize="x-small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def heads(dense: Path, options: Any, text: Path, threads: int) -> dict[str, Any]:
    prefix = Prefix(
        dense, text, options.work, start=options.start, length=options.prefix, count=options.queries, threads=threads
    )
    # compared in every operation, and all layers choose
    with opened(dense, {"mode": "ternary", "gap_every": 1, "layers": ""}, threads, prefix.n_ctx) as (llm, decoder):
        restore(llm, prefix.state)
        for at in range(options.prefix, options.prefix + options.queries):
            decoder.decode(prefix.tokens[at : at + 1], at)
        found = sorted(llm.seeddelta.attention_heads(), key=lambda head: head["gap"], reverse=True)
    for head in found:
        where = f"{head['layer']:.0f}.{head['head']:.0f}"
        print(f"{where:6} density {head['density']:.3f}  recall {head['recall']:.3f}  gap {head['gap']:.3f}")
    return {"heads": found}


def recall(dense: Path, options: Any, text: Path, threads: int, path: Path) -> dict[str, Any]:
    prefix = Prefix(
        dense, text, options.work, start=options.start, length=options.prefix, count=options.queries, threads=threads
    )
    curves: dict[str, list[dict[str, float]]] = {}
    for name, fields in RECALL.items():
        for budget in BUDGETS:
            # compared in every operation: what goes on is the exact result
            setting = fields | {"budget": budget, "gap_every": 1, "recent": 16, "layers": "", "min_context": 0}
            with opened(dense, setting, threads, prefix.n_ctx) as (llm, decoder):
                restore(llm, prefix.state)
                for at in range(options.prefix, options.prefix + options.queries):
                    decoder.decode(prefix.tokens[at : at + 1], at)
                found = llm.seeddelta.metrics()
            point = {"budget": budget, **{key: found[f"pack.{key}"] for key in ("density", "recall", "gap")}}
            curves.setdefault(name, []).append(point)
            print(name, point)
    draw(curves, {"recall": "softmax mass kept", "gap": "relative error of the output"}, path)
    return {"curves": curves}


if __name__ == "__main__":
    sys.exit(main())
