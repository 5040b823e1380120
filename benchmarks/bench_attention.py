"""Attention of single tokens: llama.cpp's, ours over all keys, and ours over keys that their bits choose.

    python benchmarks/bench_attention.py                                   # all parts, about an hour
    python benchmarks/bench_attention.py --parts speed --depth 0,2048,8000 --threads 1,2 --reps 5
    python benchmarks/bench_attention.py --parts recall,quality --prefix 4096 --scored 512 --text wiki.test.txt

speed     tokens a second at several depths of the KV cache, settings taking turns
long      the same with random weights of the shape of Llama 3.2 1B and a random cache, up to 32768 tokens
kernel    one operation on random keys, microseconds of one thread, ggml's and ours taking turns, up to 32768 positions
choice    softmax mass and recall@64 of the positions that bits and pages would choose for real queries (in NumPy)
recall    share of the softmax mass in the chosen keys, and error of the output, along the exact model's text
quality   perplexity of the tokens behind `--prefix`, decoded one by one
needles   lines of a list are asked for, at all depths; how often they are said as llama.cpp says them
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
import synthetic
from attention_choice import capture, recall_curves
from cache_state import fill_cache, sequence_state
from ggml_attention import GgmlAttention
from seeddelta import RuntimeConfig, StatePackKV, _core
from seeddelta.evaluate.decoder import Decoder
from seeddelta.evaluate.scoring import bos_token, log_norm, read_text, tokenize
from seeddelta.evaluate.speed import collect, measure, summary
from seeddelta.report.figures import speed_figure

# name -> fields of StatePackKV; None: llama.cpp's attention
SPEED: dict[str, dict[str, Any] | None] = {
    "llama.cpp": None,
    "exact": {"mode": "exact"},
    "binary 1/4": {"mode": "binary"},
    "binary 1/8": {"mode": "binary", "budget": 0.125},
    "binary 1/16": {"mode": "binary", "budget": 0.0625},
    "ternary 1/4": {"mode": "ternary"},
    "ternary 1/8": {"mode": "ternary", "budget": 0.125},
    "ternary 1/16": {"mode": "ternary", "budget": 0.0625},
    "popcount 1/16": {"mode": "binary", "popcount": True, "budget": 0.0625},
    "binary 1/16, p=0.9": {"mode": "binary", "budget": 0.0625, "mass": 0.9},
}
QUALITY = SPEED | {
    "binary 1/4, a gamma for each key": {"mode": "binary", "gamma_chunk": 1},
    "ternary 1/4, all layers": {"mode": "ternary", "layers": ""},
    "ternary 1/4, p=0.95": {"mode": "ternary", "mass": 0.95},
    "binary 1/16, no exact layers": {"mode": "binary", "budget": 0.0625, "layers": ""},
    "binary 1/16, values above 1%": {"mode": "binary", "budget": 0.0625, "negligible": 0.01},
    "score by bits, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False},
    "seed's score, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False, "popcount": True},
}
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
NO_GATES = {"gap": 1e9, "gap_every": 0, "density": 1.0}  # quality is that of the setting, not of its way out


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--parts", default="speed,long,kernel,choice,recall,quality,needles", help="default: %(default)s"
    )
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--depth", default="0,1024,2048,4096,8000", help="of speed (default: %(default)s)")
    parser.add_argument("--long-depth", default="1024,8192,32768", help="of the part long (default: %(default)s)")
    parser.add_argument("--shape", choices=synthetic.SHAPES, default="1b", help="of long (default: %(default)s)")
    parser.add_argument("--long-model", default="Q8_0", help="type of its weights (default: %(default)s)")
    parser.add_argument("--positions", default="1024,8192,32768", help="of kernel (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--gen", type=int, default=64, help="tokens a measurement of speed (default: %(default)s)")
    parser.add_argument("--text", type=Path, help="text of recall and quality (default: Python's help texts)")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens before those measured (default: %(default)s)")
    parser.add_argument("--scored", type=int, default=1024, help="tokens of quality (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=32, help="tokens of recall (default: %(default)s)")
    parser.add_argument("--settings", help="of quality, with semicolons (default: all)")
    parser.add_argument("--needles", type=int, default=30, help="lines asked for a length (default: %(default)s)")
    parser.add_argument("--lengths", default="2048,4096,8000", help="of the lists of needles (default: %(default)s)")
    options = parser.parse_args()
    dense = common.dense_model(options.dense, options.work)
    threads = [int(count) for count in options.threads.split(",")]
    parts = {
        "speed": lambda path: speed(dense, options, threads, path),
        "long": lambda path: long_contexts(options, threads, path),
        "kernel": lambda path: kernel([int(n) for n in options.positions.split(",")], options.reps),
        "choice": lambda path: choice(dense, options, threads[-1], path),
        "recall": lambda path: recall(dense, options, threads[-1], path),
        "quality": lambda path: quality(dense, options, threads[-1]),
        "needles": lambda path: needles(dense, options, threads[-1]),
    }
    for name in options.parts.split(","):
        target = f"{options.name or 'attention'}-{name}"
        found = parts[name](options.results / f"{target}.png")
        common.save(target, {"benchmark": f"attention {name}", "settings": vars_of(options)} | found, options.results)
    return 0


def vars_of(options: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def speed(dense: Path, options: Any, threads: list[int], path: Path) -> dict[str, Any]:
    each = [{} if fields is None else {"config": {"state_pack_kv": fields}} for fields in SPEED.values()]
    depths = [int(depth) for depth in options.depth.split(",")]
    comparison = seeddelta.evaluate(
        [dense] * len(SPEED), options=each, threads=threads, reps=options.reps, n_prompt=0, n_gen=options.gen,
        depths=depths, progress=True,
    )  # fmt: skip
    reports = dict(zip(SPEED, comparison.models, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    speed_figure([(name, report.speed) for name, report in reports.items()], path, title="Generation at depth")
    for name, report in reports.items():
        for found in report.speed:
            print(f"{name:20} {found.threads} threads, depth {found.depth:5}: {np.median(found.generation):6.1f} t/s")
    return {"models": {name: [found.to_dict() for found in report.speed] for name, report in reports.items()}}


LONG = ("llama.cpp", "exact", "ternary 1/4", "ternary 1/16")


def long_contexts(options: Any, threads: list[int], path: Path) -> dict[str, Any]:
    """A process for all settings, each with a cache of its own; measurements take turns."""
    (model,) = synthetic.make_models([options.long_model], options.shape, options.work).values()
    depths = sorted((int(depth) for depth in options.long_depth.split(",")), reverse=True)
    n_ctx = -(-(depths[0] + options.gen) // 256) * 256
    # random keys: their error says nothing. A model of two layers has no other than exact ones by default
    gates = {"gap": 1e9} | ({"layers": ""} if synthetic.SHAPES[options.shape].n_layers < 3 else {})
    with ExitStack() as stack:
        models = {}
        for name in LONG:
            models[name], _ = stack.enter_context(opened(model, SPEED[name], threads[-1], n_ctx, gates))
            fill_cache(models[name], depths[0])
        samples: dict[tuple[str, int, int], list[Any]] = {}
        for depth in depths:
            for rep in range(-1, options.reps):  # the first is not counted
                for count in threads:
                    for name, llm in models.items():
                        found = measure(llm, n_prompt=0, n_gen=options.gen, threads=count, depth=depth)
                        if rep >= 0:
                            samples.setdefault((name, count, depth), []).append(found)
    speeds: dict[str, list[Any]] = {name: [] for name in LONG}
    for (name, count, depth), found in sorted(samples.items(), key=lambda item: item[0][1:]):
        speeds[name].append(collect(found, threads=count, n_prompt=0, n_gen=options.gen, depth=depth))
        print(f"{name:20} {count} threads, depth {depth:5}: {np.median(speeds[name][-1].generation):6.2f} t/s")
    path.parent.mkdir(parents=True, exist_ok=True)
    speed_figure(list(speeds.items()), path, title=f"Generation at depth, {model.stem}")
    return {"model": model.name, "models": {name: [s.to_dict() for s in found] for name, found in speeds.items()}}


def kernel(positions: list[int], reps: int) -> dict[str, Any]:
    """Processor time of a thread: other programs on the machine do not count, except in the caches."""
    rng = np.random.default_rng(0)
    found = []
    for n_head, n_kv_head, dim in ((9, 3, 64), (32, 8, 64), (32, 8, 128)):
        for n_kv in positions:
            q = rng.normal(size=(n_head, dim)).astype(np.float32)
            # as many layers as are larger than caches: a model does not meet a layer's keys again before all others
            n_layers = min(16, max(1, (64 << 20) // (4 * n_kv * n_kv_head * dim)))
            layers = [
                [rng.standard_normal((n_kv, n_kv_head, dim), np.float32).astype(np.float16) for _ in range(2)]
                for _ in range(n_layers)
            ]
            mask = np.zeros(n_kv, np.float16)
            stock = [GgmlAttention(q, k, v, dim**-0.5) for k, v in layers]
            calls: dict[str, Any] = {"llama.cpp": lambda stock=stock: [one() for one in stock]}
            for name, fields in SPEED.items():
                if fields is not None:
                    settings = {key: value for key, value in fields.items() if key != "mode"}
                    pack = None if name == "exact" else _core.PackSettings(fields["mode"], **settings)
                    runs = [(_core.AttentionRun(), k, v) for k, v in layers]
                    calls[name] = lambda runs=runs, pack=pack, q=q, mask=mask: [
                        run(q, k, v, mask, scale=q.shape[1] ** -0.5, pack=pack) for run, k, v in runs
                    ]
            times: dict[str, list[float]] = {name: [] for name in calls}
            for rep in range(-1, 2 * reps):
                for name, call in calls.items():
                    begin = time.thread_time()
                    call()
                    if rep >= 0:
                        times[name].append(1e6 * (time.thread_time() - begin) / n_layers)
            for one in stock:
                one.close()
            shape = {"heads": n_head, "kv_heads": n_kv_head, "dim": dim, "positions": n_kv}
            for name, microseconds in times.items():
                found.append(shape | {"setting": name, "microseconds": summary(tuple(microseconds))})
                ratio = np.median(times["llama.cpp"]) / np.median(microseconds)
                print(f"{shape} {name:20} {np.median(microseconds):8.0f} us, {ratio:.2f} x")
    return {"operations": found}


@contextmanager
def opened(
    dense: Path, fields: dict[str, Any] | None, threads: int, n_ctx: int, gates: dict[str, Any] = NO_GATES
) -> Iterator[tuple[Any, Decoder]]:
    pack = None if fields is None else StatePackKV(**(gates | fields))
    llm = seeddelta.load(
        dense, config=RuntimeConfig(state_pack_kv=pack), n_ctx=n_ctx, n_batch=512, n_threads=threads,
        n_threads_batch=threads, flash_attn=True, verbose=False,
    )  # fmt: skip
    try:
        yield llm, Decoder(llm)
    finally:
        llm.close()


def fill(decoder: Decoder, tokens: Any) -> None:
    for at in range(0, len(tokens), decoder.n_batch):
        decoder.decode(tokens[at : at + decoder.n_batch], at, slice(0, 0))


class Prefix:
    """Tokens of a text, and the cache after the first of them as llama.cpp computes it: filled once."""

    def __init__(self, dense: Path, options: Any, count: int, threads: int) -> None:
        text = options.text or common.pydoc_text(options.work)
        self.n_ctx = -(-(options.prefix + count + 1) // 256) * 256
        with opened(dense, None, threads, self.n_ctx) as (llm, decoder):
            self.tokens = tokenize(llm, read_text(text))[: options.prefix + count + 1]
            if len(self.tokens) <= options.prefix + count:
                raise SystemExit(f"{text} has {len(self.tokens)} tokens only; use a smaller --prefix")
            fill(decoder, self.tokens[: options.prefix])
            api = decoder._api
            buffer = (ctypes.c_uint8 * api.llama_state_get_size(llm.ctx))()
            self.state = bytes(buffer[: api.llama_state_get_data(llm.ctx, buffer, len(buffer))])

    def restore(self, llm: Any, decoder: Decoder) -> None:
        buffer = (ctypes.c_uint8 * len(self.state)).from_buffer_copy(self.state)
        if not decoder._api.llama_state_set_data(llm.ctx, buffer, len(self.state)):
            raise SystemExit("llama.cpp did not take the state")


def choice(dense: Path, options: Any, threads: int, path: Path) -> dict[str, Any]:
    text = options.text or common.pydoc_text(options.work)
    with opened(dense, None, threads, 256) as (llm, _):
        tokens = tokenize(llm, read_text(text))[: options.prefix + options.queries]
    curves = recall_curves(*capture(dense, tokens, options.queries, threads))
    for name, points in curves.items():
        for point in points:
            print(f"{name:40}", " ".join(f"{key} {value:.3f}" for key, value in point.items()))
    panels = {"recall": "share of the true 64 largest scores", "mass": "softmax mass kept"}
    draw(curves, panels, path)
    return {"curves": curves}


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


def recall(dense: Path, options: Any, threads: int, path: Path) -> dict[str, Any]:
    prefix = Prefix(dense, options, options.queries, threads)
    curves: dict[str, list[dict[str, float]]] = {}
    for name, fields in RECALL.items():
        for budget in BUDGETS:
            # compared in every operation: what goes on is the exact result
            setting = fields | {"budget": budget, "gap_every": 1, "recent": 16, "layers": "", "min_context": 0}
            with opened(dense, setting, threads, prefix.n_ctx) as (llm, decoder):
                prefix.restore(llm, decoder)
                for at in range(options.prefix, options.prefix + options.queries):
                    decoder.decode(prefix.tokens[at : at + 1], at)
                found = llm.seeddelta.metrics()
            point = {"budget": budget, **{key: found[f"pack.{key}"] for key in ("density", "recall", "gap")}}
            curves.setdefault(name, []).append(point)
            print(name, point)
    draw(curves, {"recall": "softmax mass kept", "gap": "relative error of the output"}, path)
    return {"curves": curves}


def quality(dense: Path, options: Any, threads: int) -> dict[str, Any]:
    prefix = Prefix(dense, options, options.scored, threads)
    results: dict[str, Any] = {}
    base: Any = None
    stock: list[Any] = []
    wanted = options.settings.split(";") if options.settings else [name for name in QUALITY if name != "llama.cpp"]
    for name in ("llama.cpp", *wanted):
        fields = QUALITY[name]
        with opened(dense, fields, threads, prefix.n_ctx) as (llm, decoder):
            prefix.restore(llm, decoder)
            nll = np.empty(options.scored)
            divergence = np.zeros(options.scored)
            for i in range(options.scored):
                at = options.prefix + i
                logits = decoder.decode(prefix.tokens[at : at + 1], at)
                likely = (logits[0] - log_norm(logits)[0]).astype(np.float32)
                nll[i] = -likely[prefix.tokens[at + 1]]
                if base is None:
                    stock.append(likely)
                else:
                    divergence[i] = np.sum(np.exp(stock[i]) * (stock[i] - likely))
            found = llm.seeddelta.metrics()
        base = nll if base is None else base
        change = np.exp(nll.mean() - base.mean()) - 1
        error = (nll - base).std() / len(nll) ** 0.5
        results[name] = {
            "ppl": float(np.exp(nll.mean())), "change": float(change), "change_stderr": float(error),
            "kl": float(divergence.mean()), "density": found.get("pack.density"),
            "recall": found.get("pack.recall"), "packed": found.get("attention.packed"),
        }  # fmt: skip
        print(
            f"{name:30} ppl {np.exp(nll.mean()):.4f}, change {change:+.3%} ± {error:.3%}, KL {divergence.mean():.5f}",
            results[name]["density"],
            flush=True,
        )
    return {"models": results}


NEEDLE_SETTINGS = ("llama.cpp", "exact", "binary 1/4", "ternary 1/4", "binary 1/8", "ternary 1/8", "ternary 1/16")


def needles(dense: Path, options: Any, threads: int) -> dict[str, Any]:
    """A list `The code of NAME is NUMBER.`, filled into the cache once a length; then its lines are asked for."""
    results: dict[str, Any] = {name: {} for name in NEEDLE_SETTINGS}
    for length in (int(n) for n in options.lengths.split(",")):
        n_ctx = -(-(length + 64) // 256) * 256
        with opened(dense, None, threads, n_ctx) as (llm, decoder):
            text, questions = needle_list(llm, length, options.needles)
            fill(decoder, text)
            state = sequence_state(llm)
        for name in NEEDLE_SETTINGS:
            said, nll = [], []
            with opened(dense, SPEED[name], threads, n_ctx) as (llm, decoder):
                data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
                if not decoder._api.llama_state_seq_set_data(llm.ctx, data, len(state), 0):
                    raise SystemExit("llama.cpp did not take the state")
                for question, answer in questions:
                    decoder.truncate(len(text))
                    begin = len(text) + len(question) - 1
                    decoder.decode(question[:-1], len(text), slice(0, 0))
                    tokens = np.concatenate([question[-1:], answer])
                    right, cost = True, 0.0
                    for i in range(len(answer)):
                        logits = decoder.decode(tokens[i : i + 1], begin + i)
                        right = right and int(logits[0].argmax()) == answer[i]
                        cost += float(log_norm(logits)[0] - logits[0, answer[i]])
                    said.append(bool(right))
                    nll.append(cost)
                density = llm.seeddelta.metrics().get("pack.density") if SPEED[name] else None
            stock = results["llama.cpp"].get(length, {"said": said})["said"]
            same = sum(a and b for a, b in zip(stock, said, strict=True))
            results[name][length] = {"said": said, "nll": nll, "density": density, "of_stock": [same, sum(stock)]}
            print(
                f"{name:20} {length:5} tokens: {sum(said)} of {len(said)} said, {same} of the {sum(stock)} that "
                f"llama.cpp says; mean nll {np.mean(nll):.3f}"
            )
    return {"models": results}


def needle_list(llm: Any, length: int, count: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """Tokens of a list of at most `length`, and questions for `count` of its lines, evenly spread, with the numbers."""
    rng = np.random.default_rng(length)

    def tokens_of(text: str) -> list[int]:
        return list(llm.tokenize(text.encode(), add_bos=False))

    first = ("Al", "Ber", "Cor", "Den", "El", "Far", "Gil", "Hen")
    names = [f"{a}{b} {n}" for a in first for b in ("ba", "do", "ra", "vin") for n in range(100, 1000)]
    bos = bos_token(llm)
    text = [] if bos is None else [bos]
    lines: list[tuple[str, str]] = []
    for name in rng.permutation(names):
        number = str(rng.integers(10000, 99999))
        line = tokens_of(f"The code of {name} is {number}.\n")
        if len(text) + len(line) > length - 32:
            break
        text += line
        lines.append((str(name), number))
    asked = [lines[len(lines) * (2 * i + 1) // (2 * count)] for i in range(count)]
    return np.asarray(text, np.int32), [
        (np.asarray(tokens_of(f"The code of {name} is"), np.int32), np.asarray(tokens_of(f" {number}"), np.int32))
        for name, number in asked
    ]


if __name__ == "__main__":
    sys.exit(main())
