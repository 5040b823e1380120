"""Our attention beside llama.cpp's, in one process, turn by turn: `--attention auto` and `--attention llama`.

    python benchmarks/bench_context.py --parts speed --model F16=smollm2-f16.gguf --model SeedΔ=smollm2.seeddelta.gguf
    python benchmarks/bench_context.py --parts speed --shape 1b --depth 0,2048,8192,32768
    python benchmarks/bench_context.py --parts sequences,perplexity,kernel --model F16=smollm2-f16.gguf

speed       tokens per second of prompts and of generation behind `--depth` tokens; with --shape a llama of random
            weights, whose cache is random, too
sequences   four sequences, each behind `--behind` tokens, that are decoded together: tokens per second of all
perplexity  of the second half of chunks of `--context` tokens, with llama.cpp's flash attention, without it (sums in
            float32) and with ours
kernel      one operation on random keys in the shapes of four models, a token and a prompt of 512: microseconds of one
            thread
"""

from __future__ import annotations

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
from cache_state import fill_cache
from ggml_attention import GgmlAttention
from llama_cpp import llama_cpp
from seeddelta import RuntimeConfig, _core
from seeddelta.evaluate.speed import collect, measure, summary
from seeddelta.session import read_text, tokenize

SETTINGS = ("llama", "auto")
SHAPES = {  # heads, KV heads, channels
    "SmolLM2-135M": (9, 3, 64),
    "Gemma 3 270M": (4, 1, 256),
    "Llama 3.2 1B": (32, 8, 64),
    "Llama 3.1 8B": (32, 8, 128),
}
PROMPT = 512
SEQUENCES = 4
STEPS = 16  # of sequences decoded together, in one turn


@contextmanager
def opened(path: Path, attention: str, n_ctx: int, **options: Any) -> Iterator[Any]:
    settings = {"n_batch": 512, "flash_attn": True, "verbose": False} | options
    llm = seeddelta.load(path, config=RuntimeConfig(attention=attention), n_ctx=n_ctx, **settings)
    try:
        yield llm
    finally:
        llm.close()


def speed(models: dict[str, Path], options: Any, threads: list[int]) -> dict[str, Any]:
    depths = sorted((int(depth) for depth in options.depth.split(",")), reverse=True)
    n_ctx = -(-(depths[0] + max(options.prompt, options.gen)) // 256) * 256
    found: dict[str, Any] = {}
    for name, path in models.items():
        samples: dict[tuple[str, int, int], list[Any]] = {}
        with ExitStack() as stack:
            loaded = {
                setting: stack.enter_context(
                    opened(path, setting, n_ctx, n_threads=threads[-1], n_threads_batch=threads[-1])
                )
                for setting in SETTINGS
            }
            if options.shape and depths[0]:
                for llm in loaded.values():
                    fill_cache(llm, depths[0])
            for depth in depths:
                for rep in range(-1, options.reps):  # the first is not counted
                    for count in threads:
                        for setting, llm in loaded.items():
                            sizes = {"n_prompt": options.prompt, "n_gen": options.gen, "depth": depth}
                            sample = measure(llm, threads=count, **sizes)
                            if rep >= 0:
                                samples.setdefault((setting, count, depth), []).append(sample)
                for (setting, count, at), of in samples.items():
                    if at == depth:
                        one = collect(of, threads=count, n_prompt=options.prompt, n_gen=options.gen, depth=depth)
                        found.setdefault(name, {}).setdefault(setting, []).append(one.to_dict())
                        medians = [float(np.median(values)) for values in (one.prompt, one.generation) if values]
                        shown = " / ".join(f"{median:.1f}" for median in medians)
                        print(f"{name} {setting:5} {count} threads, depth {depth:5}: {shown} t/s", flush=True)
    return {"models": found}


def sequences(models: dict[str, Path], options: Any, threads: list[int]) -> dict[str, Any]:
    found = []
    for name, path in models.items():
        with ExitStack() as stack:
            runs = {
                setting: Together(
                    stack.enter_context(opened(path, setting, SEQUENCES * (options.behind + 256), parallel=SEQUENCES)),
                    options.behind,
                )
                for setting in SETTINGS
            }
            for count in threads:
                speeds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
                for rep in range(-1, options.reps):
                    for setting, run in runs.items():
                        one = run.speed(count)
                        if rep >= 0:
                            speeds[setting].append(one)
                for setting, values in speeds.items():
                    found.append(
                        {"model": name, "threads": count, "setting": setting} | {"speed": summary(tuple(values))}
                    )
                    print(f"{name} {setting:5} {count} threads: {np.median(values):.1f} t/s", flush=True)
    return {"sequences": SEQUENCES, "behind": options.behind, "speeds": found}


class Together:
    """One context with a cache for each sequence, filled with as many random tokens."""

    def __init__(self, llm: Any, behind: int) -> None:
        self.llm, self.behind = llm, behind
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.tokens = np.random.default_rng(1).integers(100, 20000, (SEQUENCES, behind + STEPS))
        for sequence in range(SEQUENCES):
            for begin in range(0, behind, 512):
                self._decode([(sequence, at) for at in range(begin, min(behind, begin + 512))])

    def _decode(self, items: list[tuple[int, int]]) -> None:
        self.batch.n_tokens = len(items)
        for i, (sequence, at) in enumerate(items):
            self.batch.token[i], self.batch.pos[i] = int(self.tokens[sequence, at]), at
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, sequence, at >= self.behind
        if llama_cpp.llama_decode(self.llm.ctx, self.batch) != 0:
            raise SystemExit("llama.cpp could not decode the sequences")

    def speed(self, threads: int) -> float:
        llama_cpp.llama_set_n_threads(self.llm.ctx, threads, threads)
        begin = time.perf_counter()
        for step in range(STEPS):
            self._decode([(sequence, self.behind + step) for sequence in range(SEQUENCES)])
        taken = time.perf_counter() - begin
        memory = llama_cpp.llama_get_memory(self.llm.ctx)
        for sequence in range(SEQUENCES):
            llama_cpp.llama_memory_seq_rm(memory, sequence, self.behind, -1)
        return SEQUENCES * STEPS / taken


def perplexity(models: dict[str, Path], options: Any, threads: list[int]) -> dict[str, Any]:
    if options.text is None:
        raise SystemExit("perplexity needs --text")
    found: dict[str, Any] = {}
    for name, path in models.items():
        for shown, setting, flash in (
            ("llama.cpp", "llama", True), ("llama.cpp, no flash attention", "llama", False), ("ours", "auto", True)
        ):  # fmt: skip
            with opened(
                path, setting, options.context, n_threads=threads[-1], n_threads_batch=threads[-1], flash_attn=flash
            ) as llm:
                tokens = tokenize(llm, read_text(options.text))
                one = seeddelta.perplexity(llm, tokens, n_ctx=options.context, chunks=options.chunks)
                metrics = llm.seeddelta.metrics()
            found.setdefault(name, {})[shown] = {
                "ppl": one.ppl,
                "tokens_scored": one.tokens_scored,
                "attention.prompts": metrics.get("attention.prompts", 0),
            }
            print(name, shown, one.ppl, flush=True)
    return {"context": options.context, "models": found}


def kernel(options: Any) -> dict[str, Any]:
    """Processor time of a thread: other programs on the machine do not count, except in the caches."""
    rng = np.random.default_rng(0)
    found = []
    for model, (n_head, n_kv_head, dim) in SHAPES.items():
        for n_kv in (int(n) for n in options.positions.split(",")):
            for tokens in (1, PROMPT):
                # as many layers as are larger than caches: a model does not meet a layer's keys again before all others
                n_layers = min(16, max(1, (64 << 20) // (4 * n_kv * n_kv_head * dim))) if tokens == 1 else 1
                q = rng.standard_normal((tokens, n_head, dim), np.float32)
                layers = [
                    [rng.standard_normal((n_kv, n_kv_head, dim), np.float32).astype(np.float16) for _ in range(2)]
                    for _ in range(n_layers)
                ]
                mask = np.zeros((1, tokens, n_kv), np.float16)
                stock = [GgmlAttention(q, k, v, dim**-0.5) for k, v in layers]
                own = _core.AttentionRun()

                def ours(layers: Any = layers, q: Any = q, mask: Any = mask, own: Any = own) -> None:
                    for k, v in layers:
                        own.batch(q[None], k[None], v[None], mask, scale=q.shape[2] ** -0.5)

                def llamas(stock: Any = stock) -> None:
                    for one in stock:
                        one()

                times: dict[str, list[float]] = {"llama": [], "auto": []}
                for rep in range(-1, options.reps):
                    for name, call in (("llama", llamas), ("auto", ours)):
                        begin = time.thread_time()
                        call()
                        if rep >= 0:
                            times[name].append(1e6 * (time.thread_time() - begin) / n_layers)
                for one in stock:
                    one.close()
                shape = {"model": model, "positions": n_kv, "tokens": tokens}
                found.append(shape | {name: summary(tuple(values)) for name, values in times.items()})
                medians = [float(np.median(values)) for values in times.values()]
                print(shape, f"{medians[0]:.0f} -> {medians[1]:.0f} us, {medians[0] / medians[1]:.2f} x", flush=True)
    return {"operations": found}


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--parts", default="speed,sequences,perplexity,kernel", help="default: %(default)s")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE", help="may be given several times")
    parser.add_argument("--shape", choices=synthetic.SHAPES, help="of speed: random weights of type Q8_0")
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--depth", default="0,512,2048,8192", help="of speed (default: %(default)s)")
    parser.add_argument("--positions", default="256,2048,8192", help="of kernel (default: %(default)s)")
    parser.add_argument("--behind", type=int, default=2048, help="tokens of each sequence (default: %(default)s)")
    parser.add_argument("--context", type=int, default=8192, help="of perplexity (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=4, help="of perplexity (default: %(default)s)")
    parser.add_argument("--text", type=Path, help="of perplexity")
    parser.add_argument("--reps", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens a measurement (default: %(default)s)")
    parser.add_argument("--gen", type=int, default=48, help="tokens a measurement (default: %(default)s)")
    options = parser.parse_args()
    threads = common.parse_threads(options.threads)
    models = {name: Path(path) for name, _, path in (given.partition("=") for given in options.model)}
    if options.shape:
        models = synthetic.make_models(["Q8_0"], options.shape, options.work)
    if not models:
        models = {"F16": common.dense_model(options.dense, options.work)}
    parts = {
        "speed": lambda: speed(models, options, threads),
        "sequences": lambda: sequences(models, options, threads),
        "perplexity": lambda: perplexity(models, options, threads),
        "kernel": lambda: kernel(options),
    }
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    settings["model"] = {name: path.name for name, path in models.items()}
    for name in options.parts.split(","):
        target = f"context-{name}" + (f"-{options.name}" if options.name else "")
        result = parts[name]()
        common.save(target, {"benchmark": f"context {name}", "settings": settings} | result, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
