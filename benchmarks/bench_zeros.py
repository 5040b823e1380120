"""Speed of exact zeros at ffn_down's input: models with a squared ReLU and random weights in a large shape.

    python benchmarks/bench_zeros.py --architectures nemotron,arcee --zeros 85,50 --shape 1b

A hidden state that is large and the same for every token, with a negative weight in every row of ffn_up, makes the
zeros; their share is counted in the graph. Tokens with and without skipping alternate in one context, so that nothing
else differs; their logits must have the same bits. `--make` makes the models only.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import gguf.quants
import numpy as np
import seeddelta
import synthetic
from gguf import GGUFValueType
from seeddelta.cli.demo import bundled_model
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf
from seeddelta.runtime import RuntimeConfig
from seeddelta.session.decoder import Decoder
from synthetic import F16, F32, FIRST, Q8_0, SHAPES, Shape

KINDS: dict[str, dict[str, Any]] = {"f16": {"columns": "f16"}, "SeedΔ": {}}
LARGE = 12.0  # the hidden state that is the same for all tokens; the others have a variance of 1
SMALL = 0.02  # gain of what a layer adds, so that this stays so
ZEROS = 8  # the feature of a gate, see GraphHook.pause_gates
# Of the inputs of ffn_up only that one has a mean; the sum of the others has a variance of 1 before the norm.
QUANTILE = {85: 1.0364, 50: 0.0}


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--architectures", default="nemotron,arcee", help="default: %(default)s")
    parser.add_argument("--zeros", default="85,50", help="percent, of 85 and 50 (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--shape", choices=SHAPES, default="1b", help="default: %(default)s")
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--gen", type=int, default=24, help="tokens of each kind (default: %(default)s)")
    parser.add_argument("--make", action="store_true", help="make the models only")
    options = parser.parse_args()
    path = options.results / f"{options.name or f'zeros-{options.shape}'}.json"
    rows: list[dict[str, Any]] = []
    for name in options.architectures.split(","):
        for percent in map(int, options.zeros.split(",")):
            for kind in options.kinds.split(","):
                model = model_of(name, percent, kind, options)
                if not options.make:
                    rows += measure(model, name, percent, kind, options)
    if rows:
        common.save(path.stem, {"benchmark": "zeros", "shape": options.shape, "rows": rows}, options.results)
    return 0


def measure(model: Path, name: str, percent: int, kind: str, options: Any) -> list[dict[str, Any]]:
    """Medians of tokens with and without skipping, by number of threads."""
    config = RuntimeConfig(**KINDS[kind], force=True)
    llm = seeddelta.load(model, config=config, n_ctx=512, n_batch=64, n_threads=1, verbose=False)
    rows = []
    try:
        for threads in map(int, options.threads.split(",")):
            decoder = Decoder(llm)
            decoder.set_threads(threads)
            times: dict[bool, list[float]] = {False: [], True: []}
            for at in range(2 * options.gen + 4):
                skips = at % 2 == 0
                llm.seeddelta.hook.pause_gates(0 if skips else ZEROS)
                token = np.array([100 + at // 2], np.int32)
                begin = time.perf_counter()
                decoder.decode(token, at)
                if at >= 4:
                    times[skips].append(time.perf_counter() - begin)
            medians = {skips: statistics.median(values) for skips, values in times.items()}
            metrics = llm.seeddelta.metrics()
            row = {
                "architecture": name, "wanted": percent, "columns": kind, "threads": threads,
                "zeros": metrics["zeros.share"], "tokens_per_second": 1 / medians[True],
                "without": 1 / medians[False], "ratio": medians[False] / medians[True], "same_bits": same_bits(llm),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:9} {kind:6} {row['zeros']:6.1%} zeros, {threads} threads: {row['without']:6.1f} -> "
                f"{row['tokens_per_second']:6.1f} tokens/s, {row['ratio']:.3f} times; same bits: {row['same_bits']}",
                flush=True,
            )
    finally:
        llm.close()
    return rows


def same_bits(llm: Any) -> bool:
    """Whether the logits of two tokens do not depend on skipping."""
    found = []
    for features in (0, ZEROS):
        llm.seeddelta.hook.pause_gates(features)
        decoder = Decoder(llm)
        found.append([decoder.decode(np.array([token], np.int32), at).copy() for at, token in enumerate((50, 60))])
    return bool(np.array_equal(*found))


def model_of(name: str, percent: int, kind: str, options: Any) -> Path:
    """Made where it is not there yet."""
    options.work.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[options.shape].without_gate()
    stem = f"zeros-{options.shape}-{name}-{percent}-{shape.n_ff}"
    layer, dense = options.work / f"{stem}-one-layer.gguf", options.work / f"{stem}.gguf"
    if not dense.exists():
        write_layer(shape, name, percent, layer)
        synthetic.repeat_layer(layer, dense, shape.n_layers)
    if kind != "SeedΔ":
        return dense
    path = dense.with_suffix(".seeddelta.gguf")
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            single = Path(folder) / "one-layer.gguf"
            targets = ["all", "head" if name == "nemotron" else "embd"]  # the output matrix, too, as by default
            recipe = seeddelta.Recipe(
                input=layer, output=single, bits=4, seed=synthetic.SEED, targets=targets, column_tensor=["ffn_down"]
            )
            seeddelta.build(recipe)
            synthetic.repeat_layer(single, path, shape.n_layers)
    return path


def write_layer(shape: Shape, name: str, percent: int, path: Path) -> None:
    """A model of one layer of `name`, which is nemotron (norms with biases, an output matrix) or arcee."""
    bundled = read_header(bundled_model())
    n_vocab = len(bundled.metadata["tokenizer.ggml.tokens"])
    norms = ["output_norm", f"{FIRST}attn_norm", f"{FIRST}ffn_norm"]
    plan = [PlannedTensor("token_embd.weight", (n_vocab, shape.n_embd), Q8_0)]
    plan += [PlannedTensor(f"{one}.weight", (shape.n_embd,), F32) for one in norms]
    if name == "nemotron":
        plan += [PlannedTensor(f"{one}.bias", (shape.n_embd,), F32) for one in norms]
        plan.append(PlannedTensor("output.weight", (n_vocab, shape.n_embd), Q8_0))
    plan += [
        PlannedTensor(f"{FIRST}{key}.weight", size, F16) for key, size in shape.matrices().items() if key != "ffn_gate"
    ]
    generator = np.random.default_rng(synthetic.SEED)

    def data(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        if tensor.type == F32:
            yield np.full(tensor.shape, 0.0 if tensor.name.endswith("bias") else 1.0, np.float32)
            return
        values = generator.standard_normal(tensor.shape, dtype=np.float32)
        if tensor.name == "token_embd.weight":
            values[:, 0] = LARGE
        else:
            values *= np.float32(tensor.shape[-1] ** -0.5)
        if tensor.name.endswith(("attn_output.weight", "ffn_down.weight")):
            values *= np.float32(SMALL)
            values[0] = 0
        elif tensor.name.endswith("ffn_up.weight"):
            values[:, 0] = -QUANTILE[percent] / LARGE
        yield gguf.quants.quantize(values, tensor.type)

    write_gguf(path, _metadata(shape, name, n_vocab), plan, data)


def _metadata(shape: Shape, name: str, n_vocab: int) -> dict[str, Value]:
    numbers = {
        "context_length": 1 << 12, "embedding_length": shape.n_embd, "block_count": 1,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_kv_head, "rope.dimension_count": shape.head, "vocab_size": n_vocab,
    }  # fmt: skip
    epsilon = "layer_norm_epsilon" if name == "nemotron" else "layer_norm_rms_epsilon"
    values: dict[str, Value] = {
        "general.architecture": Typed(name, GGUFValueType.STRING),
        "general.name": Typed("random weights, for speed only", GGUFValueType.STRING),
        f"{name}.attention.{epsilon}": Typed(1e-5, GGUFValueType.FLOAT32),
    }
    values |= {f"{name}.{key}": Typed(value, GGUFValueType.UINT32) for key, value in numbers.items()}
    bundled = copied_metadata(read_header(bundled_model()))
    return values | {key: value for key, value in bundled.items() if key.startswith("tokenizer.")}


if __name__ == "__main__":
    sys.exit(main())
