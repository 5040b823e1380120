"""Attention of single tokens: llama.cpp's, ours over all keys, and ours over keys that their bits choose.

    python benchmarks/bench_attention.py                                   # all parts, about an hour
    python benchmarks/bench_attention.py --parts speed --depth 0,2048,8000 --threads 1,2 --reps 5
    python benchmarks/bench_attention.py --parts recall,quality --prefix 4096 --scored 512 --text wiki.test.txt

speed     tokens a second at several depths of the KV cache, settings taking turns
kernel    one operation on random keys, microseconds, up to 32768 positions (ours only)
recall    share of the softmax mass in the chosen keys, and error of the output, along the exact model's text
quality   perplexity of the tokens behind `--prefix`, decoded one by one
needles   a word is asked for that stands at ten depths of a list; how often it is said, and its likelihood
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
from seeddelta import RuntimeConfig, StatePackKV, _core
from seeddelta.evaluate.decoder import Decoder
from seeddelta.evaluate.scoring import bos_token, log_norm, read_text, tokenize
from seeddelta.evaluate.speed import summary
from seeddelta.report.figures import speed_figure

# name -> fields of StatePackKV; None: llama.cpp's attention
SPEED: dict[str, dict[str, Any] | None] = {
    "llama.cpp": None,
    "exact": {"mode": "exact"},
    "binary 1/4": {"mode": "binary"},
    "binary 1/8": {"mode": "binary", "budget": 0.125},
    "binary 1/16": {"mode": "binary", "budget": 0.0625},
    "ternary 1/16": {"mode": "ternary", "budget": 0.0625},
    "popcount 1/16": {"mode": "binary", "popcount": True, "budget": 0.0625},
    "binary 1/16, p=0.9": {"mode": "binary", "budget": 0.0625, "mass": 0.9},
}
QUALITY = SPEED | {
    "binary 1/16, no exact layers": {"mode": "binary", "budget": 0.0625, "layers": ""},
    "binary 1/16, values above 1%": {"mode": "binary", "budget": 0.0625, "negligible": 0.01},
    "score by bits, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False},
    "seed's score, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False, "popcount": True},
}
BUDGETS = (0.02, 0.04, 0.08, 0.16, 0.32)
RECALL: dict[str, dict[str, Any]] = {
    "binary": {"mode": "binary"},
    "binary, gamma of 32": {"mode": "binary", "gamma_chunk": 32},
    "binary, popcount": {"mode": "binary", "popcount": True},
    "ternary, eps 0.3": {"mode": "ternary", "eps": 0.3},
    "ternary, eps 0.5": {"mode": "ternary", "eps": 0.5},
    "ternary, eps 0.8": {"mode": "ternary", "eps": 0.8},
    "ternary, popcount": {"mode": "ternary", "popcount": True},
}
NO_GATES = {"gap": 1e9, "gap_every": 0, "density": 1.0}  # quality is that of the setting, not of its way out


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--parts", default="speed,kernel,recall,quality,needles", help="default: %(default)s")
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--depth", default="0,1024,2048,4096,8000", help="of speed (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--gen", type=int, default=64, help="tokens a measurement of speed (default: %(default)s)")
    parser.add_argument("--text", type=Path, help="text of recall and quality (default: Python's help texts)")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens before those measured (default: %(default)s)")
    parser.add_argument("--scored", type=int, default=1024, help="tokens of quality (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=32, help="tokens of recall (default: %(default)s)")
    parser.add_argument("--lengths", default="2048,4096,8000", help="of the lists of needles (default: %(default)s)")
    options = parser.parse_args()
    dense = common.dense_model(options.dense, options.work)
    threads = [int(count) for count in options.threads.split(",")]
    parts = {
        "speed": lambda path: speed(dense, options, threads, path),
        "kernel": lambda path: kernel(options.reps),
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


def kernel(reps: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = []
    for n_head, n_kv_head, dim in ((9, 3, 64), (32, 8, 64), (32, 8, 128)):
        for n_kv in (1024, 8192, 32768):
            q = rng.normal(size=(n_head, dim)).astype(np.float32)
            k, v = (rng.normal(size=(n_kv, n_kv_head, dim)).astype(np.float16) for _ in range(2))
            for name, fields in SPEED.items():
                if fields is None:
                    continue
                settings = {key: value for key, value in fields.items() if key != "mode"}
                pack = None if name == "exact" else _core.PackSettings(fields["mode"], **settings)
                run = _core.AttentionRun()
                run(q, k, v, scale=dim**-0.5, pack=pack)
                times = []
                for _ in range(4 * reps):
                    begin = time.perf_counter()
                    run(q, k, v, scale=dim**-0.5, pack=pack)
                    times.append(1e6 * (time.perf_counter() - begin))
                shape = {"heads": n_head, "kv_heads": n_kv_head, "dim": dim, "positions": n_kv}
                found.append(shape | {"setting": name, "microseconds": summary(tuple(times))})
                print(f"{shape} {name:20} {np.median(times):8.0f} us")
    return {"operations": found}


@contextmanager
def opened(dense: Path, fields: dict[str, Any] | None, threads: int, n_ctx: int) -> Iterator[tuple[Any, Decoder]]:
    pack = None if fields is None else StatePackKV(**(NO_GATES | fields))
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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for panel, key in zip(figure.subplots(1, 2), ("recall", "gap"), strict=True):
        for name, points in curves.items():
            panel.plot([p["density"] for p in points], [p[key] for p in points], marker="o", markersize=3, label=name)
        panel.set_xscale("log")
        panel.set_xlabel("share of the positions attended to")
        panel.set_ylabel({"recall": "softmax mass kept", "gap": "relative error of the output"}[key])
        panel.grid(linewidth=0.4)
        panel.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return {"curves": curves}


def quality(dense: Path, options: Any, threads: int) -> dict[str, Any]:
    prefix = Prefix(dense, options, options.scored, threads)
    results: dict[str, Any] = {}
    base: Any = None
    for name, fields in QUALITY.items():
        with opened(dense, fields, threads, prefix.n_ctx) as (llm, decoder):
            prefix.restore(llm, decoder)
            nll = np.empty(options.scored)
            for i in range(options.scored):
                at = options.prefix + i
                logits = decoder.decode(prefix.tokens[at : at + 1], at)
                nll[i] = log_norm(logits)[0] - logits[0, prefix.tokens[at + 1]]
            found = llm.seeddelta.metrics()
        base = nll if base is None else base
        change = np.exp(nll.mean() - base.mean()) - 1
        error = (nll - base).std() / len(nll) ** 0.5
        results[name] = {
            "ppl": float(np.exp(nll.mean())), "change": float(change), "change_stderr": float(error),
            "density": found.get("pack.density"), "packed": found.get("attention.packed"),
        }  # fmt: skip
        print(f"{name:30} ppl {np.exp(nll.mean()):.4f}, change {change:+.3%} ± {error:.3%}", results[name]["density"])
    return {"models": results}


NEEDLE_SETTINGS = ("llama.cpp", "exact", "binary 1/8", "binary 1/16", "popcount 1/16", "binary 1/16, p=0.9")


def needles(dense: Path, options: Any, threads: int) -> dict[str, Any]:
    """A list `The code of NAME is NUMBER.`; the last line asks for one of them again."""
    results: dict[str, Any] = {name: {} for name in NEEDLE_SETTINGS}
    for length in (int(n) for n in options.lengths.split(",")):
        for name in NEEDLE_SETTINGS:
            said, nll = [], []
            with opened(dense, SPEED[name], threads, -(-(length + 64) // 256) * 256) as (llm, decoder):
                for depth in range(10):
                    prompt, answer = needle(llm, length, depth)
                    decoder.clear()
                    fill(decoder, prompt[:-1])
                    tokens = np.concatenate([prompt[-1:], answer])
                    right, cost = True, 0.0
                    for i in range(len(answer)):
                        logits = decoder.decode(tokens[i : i + 1], len(prompt) - 1 + i)
                        right = right and int(logits[0].argmax()) == answer[i]
                        cost += float(log_norm(logits)[0] - logits[0, answer[i]])
                    said.append(right)
                    nll.append(cost)
            results[name][length] = {"said": said, "nll": nll}
            print(f"{name:20} {length:5} tokens: {sum(said)} of 10 said, mean nll {np.mean(nll):.3f}")
    return {"models": results}


def needle(llm: Any, length: int, depth: int) -> tuple[Any, Any]:
    """Prompt of at most `length` tokens, and the tokens of the number that it asks for."""
    rng = np.random.default_rng(100 * length + depth)
    names = [
        f"{a}{b}" for a in ("Al", "Ber", "Cor", "Den", "El", "Far", "Gil", "Hen") for b in ("ba", "do", "ra", "vin")
    ]

    def tokens_of(text: str) -> list[int]:
        return list(llm.tokenize(text.encode(), add_bos=False))

    def line() -> str:
        return f"The code of {rng.choice(names)} {rng.integers(100, 999)} is {rng.integers(10000, 99999)}.\n"

    name, number = f"Zarko {rng.integers(100, 999)}", str(rng.integers(10000, 99999))
    hidden = tokens_of(f"The code of {name} is {number}.\n")
    question = tokens_of(f"The code of {name} is")
    room = length - len(hidden) - len(question) - 1
    lines: list[list[int]] = []
    while sum(map(len, lines)) < room:
        lines.append(tokens_of(line()))
    lines = lines[:-1]
    lines.insert(len(lines) * depth // 10, hidden)
    bos = bos_token(llm)
    prompt = [] if bos is None else [bos]
    for part in lines:
        prompt += part
    return np.asarray(prompt + question, np.int32), np.asarray(tokens_of(f" {number}"), np.int32)


if __name__ == "__main__":
    sys.exit(main())
