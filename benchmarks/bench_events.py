"""Event-driven inputs on real text: how much changes from token to token, what leaving it out costs, gives and takes.

    python benchmarks/bench_events.py --text wiki.test.txt                      # all parts
    python benchmarks/bench_events.py --parts speed,budget --text wiki.test.txt --reps 5 --threads 1,2

statistics  changes of the inputs of every matrix from one token to the next (a llama in NumPy)
quality     perplexity, divergence and gap by settings, F16 columns, tokens one after the other as in generation
speed       generation behind a prompt of `--depth` tokens of the text, settings taking turns
budget      time that the products, or the attention, of a token took, by the budget that they were given
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np
import numpy.typing as npt
import seeddelta
from attention_models import fill
from bench_skipping import quality_row, skipping_metrics, stored
from seeddelta.session import read_text, tokenize
from seeddelta.session.decoder import Decoder

sys.path.append(str(Path(__file__).parents[1] / "research" / "token_weights"))
from gradient_covariance import Llama

F32 = npt.NDArray[np.float32]
Config = dict[str, Any]

F16 = {"columns": "f16"}
NO_CHECKS = {"gap_every": 0}
LARGE_GAP = {"gap_tol": 0.3}  # no product of these is that wrong
KWTA = {"kwta": {"k": {"ffn_down": 0.5}}}
ALL: Config = F16
# of the inputs of the MLP, unless said otherwise
EVENTS: dict[str, dict[str, Any]] = {
    "theta 0.1": {"delta_theta": 0.1},
    "theta 0.2": {"delta_theta": 0.2},
    "theta 0.3": {"delta_theta": 0.3},
    "theta 0.5": {"delta_theta": 0.5},
    "theta 0.3, no staleness": {"delta_theta": 0.3, "stale_lambda": 0.0},
    "half of the inputs": {"delta_theta": 0.0, "topk": 0.5},
    "quorum 0.9": {"delta_theta": 0.0, "quorum": 0.9},
}
DOWN = {"columns": "f16", "column_targets": ("ffn_down",)}  # events of ffn_down alone: nothing else is by columns
SETTINGS: dict[str, Config] = {
    "all": ALL,
    **{f"MLP, {name}": F16 | {"event": LARGE_GAP | event} for name, event in EVENTS.items()},
    "down, all": DOWN,
    **{f"down, {name}": DOWN | {"event": LARGE_GAP | event} for name, event in EVENTS.items() if "stale" not in name},
    "down, KWTA 0.5": DOWN | KWTA,
    "down, KWTA 0.5 and theta 0.3": DOWN | KWTA | {"event": LARGE_GAP | {"delta_theta": 0.3}},
    "down, KWTA 0.5 and theta 0.2": DOWN | KWTA | {"event": LARGE_GAP | {"delta_theta": 0.2}},
}
SPEED = (
    "all", "MLP, theta 0.3", "MLP, theta 0.5", "down, all", "down, theta 0.3", "down, theta 0.5",
    "down, KWTA 0.5", "down, KWTA 0.5 and theta 0.3",
)  # fmt: skip
# a gap that every check finds too large: events are off from the first check on
OFF = {"down, off by its gap": DOWN | {"event": {"gap_tol": 0.0, "gap_every": 1, "rearm": 1_000_000}}}
BUDGETS = (0.1, 0.3, 1.0, 3.0, 10.0)
OVER: dict[str, Config] = {"": F16, ", attention": {}}  # products, or attention over the KV cache
AGAIN = 8  # last tokens of a prompt that are decoded again, one by one
THETAS = (0.1, 0.2, 0.3, 0.5, 1.0)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text that the tokens are from")
    parser.add_argument("--parts", default="statistics,quality,speed,budget", help="default: %(default)s")
    parser.add_argument("--chunks", type=int, default=16, help="chunks of 512 tokens of the quality")
    parser.add_argument("--only", default="", help="part of the names of the settings of the quality")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=2048, help="tokens before those that are timed")
    parser.add_argument("--reps", type=int, default=5, help="repetitions of the speed (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=64, help="tokens to generate (default: %(default)s)")
    options = parser.parse_args()
    dense = common.dense_model(options.dense, options.work)
    name = options.name or "events"
    result = stored(options.results / f"{name}.json") | {"benchmark": "events"}
    parts = {"statistics": statistics, "quality": quality, "speed": speed, "budget": budgets}
    for part in options.parts.split(","):
        found = parts[part](dense, options)
        result[part] = result.get(part, {}) | found if part == "quality" else found
        common.save(name, result, options.results)
    return 0


def statistics(dense: Path, options: Any) -> dict[str, Any]:
    """Of 512 tokens, by kind of input; means over tokens 256 to 511 and all layers.

    energy: |x_t - x_(t-1)|^2 / |x_t|^2, which is 2 for tokens that have nothing to do with each other.
    changed: share of the inputs whose change is above theta times the root mean square of x_t.
    small: share of the inputs that are below theta times it themselves: what KWTA leaves out.
    """
    import llama_cpp

    tokenizer = llama_cpp.Llama(str(dense), vocab_only=True, verbose=False)
    tokens = tokenize(tokenizer, read_text(options.text))[:512]
    tokenizer.close()
    model = Llama(dense)
    model.logits(tokens)
    kinds: dict[str, list[F32]] = {"attn_q, k, v": [], "attn_output": [], "ffn_gate, up": [], "ffn_down": []}
    for a, _, _, _, _, _, o, m, _, _, _, _, d in model.kept:
        for inputs, x in zip(kinds.values(), (a, o, m, d), strict=True):
            inputs.append(x)
    rows = {}
    for kind, layers in kinds.items():
        energy, changed, small = [], [], []
        for x in layers:
            before, now = x[255:-1], x[256:]
            size = np.sqrt((now * now).mean(-1, keepdims=True))
            energy.append(float((((now - before) ** 2).sum(-1) / (now**2).sum(-1)).mean()))
            changed.append([float((np.abs(now - before) > theta * size).mean()) for theta in THETAS])
            small.append([float((np.abs(now) > theta * size).mean()) for theta in THETAS])
        rows[kind] = {
            "energy": float(np.mean(energy)),
            "energy_of_layers": energy,
            "changed": dict(zip(map(str, THETAS), np.mean(changed, 0).tolist(), strict=True)),
            "large": dict(zip(map(str, THETAS), np.mean(small, 0).tolist(), strict=True)),
        }
        print(f"{kind:14} energy of the change {rows[kind]['energy']:.2f}, changed {rows[kind]['changed']}")
    return {"tokens": 512, "text": options.text.name, "inputs": rows}


def quality(dense: Path, options: Any) -> dict[str, Any]:
    chosen = {name: config for name, config in SETTINGS.items() if options.only in name}
    comparison = seeddelta.evaluate(
        [dense] * (1 + len(chosen)),
        text=options.text,
        chunks=options.chunks,
        threads=common.parse_threads(options.threads)[:1],
        reps=0,
        options=[{}, *({"config": config | {"skip_prompt": True}} for config in chosen.values())],
        progress=True,
    )
    rows = {}
    for name, report in zip(["llama.cpp F16", *chosen], comparison.models, strict=True):
        row = rows[name] = quality_row(report)
        gap = row["metrics"].get("event.quality_gap", 0.0)
        print(f"{name:36} ppl {row['ppl']:8.3f}  active {row['active']:.3f}  gap {gap:.3f}", file=sys.stderr)
    return rows


class Run:
    """A model with the first tokens of the text in its cache."""

    def __init__(self, dense: Path, config: Config | None, tokens: npt.NDArray[Any], options: Any) -> None:
        given = {} if config is None else {"config": seeddelta.RuntimeConfig.from_dict(config)}
        self.llm = seeddelta.load(dense, n_ctx=len(tokens), n_batch=512, n_threads=1, verbose=False, **given)
        self.decoder, self.tokens, self.depth = Decoder(self.llm), tokens, options.depth
        fill(self.decoder, tokens[: self.depth - AGAIN])

    def generate(self, threads: int, after: Callable[[], Any] | None = None) -> float:
        """Tokens a second of those behind `depth`; `after` is called after each.

        The last tokens of the prompt are decoded one after another, which brings the events' state up to date.
        """
        self.decoder.set_threads(threads)
        self.decoder.truncate(self.depth - AGAIN)
        begin = time.perf_counter()
        for at in range(self.depth - AGAIN, len(self.tokens)):
            if at == self.depth:
                begin = time.perf_counter()
            self.decoder.decode(self.tokens[at : at + 1], at)
            if after is not None and at >= self.depth:
                after()
        return (len(self.tokens) - self.depth) / (time.perf_counter() - begin)


def text_tokens(dense: Path, options: Any) -> npt.NDArray[Any]:
    import llama_cpp

    tokenizer = llama_cpp.Llama(str(dense), vocab_only=True, verbose=False)
    tokens = tokenize(tokenizer, read_text(options.text))
    tokenizer.close()
    return np.asarray(tokens[: options.depth + options.gen])


def speed(dense: Path, options: Any) -> dict[str, Any]:
    tokens = text_tokens(dense, options)
    settings: dict[str, Config | None] = {"llama.cpp F16": None}
    settings |= {name: SETTINGS[name] for name in SPEED} | OFF
    rows: dict[str, Any] = {name: {} for name in settings}
    for threads in common.parse_threads(options.threads):
        runs = {name: Run(dense, config, tokens, options) for name, config in settings.items()}
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for rep in range(options.reps + 1):
            for name, run in runs.items():
                rate = run.generate(threads)
                if rep:  # the first reads the weights
                    samples[name].append(rate)
        for name, run in runs.items():
            metrics = run.llm.seeddelta.metrics() if settings[name] else {}
            rows[name][str(threads)] = {
                "median": median(samples[name]),
                "samples": samples[name],
                "metrics": skipping_metrics(metrics),
            }
            base = "down, all" if name.startswith("down") else "all"
            over = median(samples[name]) / median(samples[base])
            print(f"{threads} threads  {name:32} {median(samples[name]):6.1f} tokens/s, {over:.2f} of {base}")
            run.llm.close()
    return {"depth": options.depth, "gen": options.gen, "text": options.text.name, "models": rows}


def budgets(dense: Path, options: Any) -> dict[str, Any]:
    tokens = text_tokens(dense, options)
    rows = {}
    cases = [
        (threads, budget, over)
        for threads in common.parse_threads(options.threads)
        for budget in BUDGETS
        for over in OVER
    ]
    for threads, budget, over in cases:
        event = {"delta_theta": 0.0, "budget_ms": budget} | NO_CHECKS
        run = Run(dense, OVER[over] | {"event": event | ({"target": "kv"} if over else {})}, tokens, options)
        used: list[float] = []
        handle = run.llm.seeddelta

        def note(handle: Any = handle, used: list[float] = used) -> None:
            used.append(handle.metrics()["event.budget_ms_used"])

        run.generate(threads, note)
        metrics = handle.metrics()
        run.llm.close()
        row = {
            "median_ms": median(used),
            "quantile_90_ms": float(np.quantile(used, 0.9)),
            "sent": metrics["event.topk_kept"],
            "hits": metrics["event.budget_hits"],
            "used": used,
        }
        rows[f"{budget:g} ms, {threads} threads{over}"] = row
        print(f"{threads} threads, {budget:5g} ms{over}: median {row['median_ms']:.3f} ms, sent {row['sent']:.3f}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
