"""Ways to skip inputs of a llama's matrices, compared at what they read and what that costs: a llama in NumPy.

    OPENBLAS_NUM_THREADS=1 python research/skipping_methods/sparsity_methods.py -m dense.gguf \\
      --calibrate wiki.valid.txt --text wiki.test.txt --method qkv=.65,o=.5,gu=.65,down=.5 \\
      --method qkv=.65,o=.5,gu=.65,down=.5+fit --json out.json

A method is a fraction for each input (`qkv`, `o`, `gu`, `down`; 1 where none is given), or `share=.7` of all weights,
divided among inputs and layers such that the expected divergence is least, and any of

fit         W' = argmin Σ w |target − W' z|² + λ |W' − W|², matrix by matrix along the network: z are the inputs that
            are left in the sparsified model's own stream, the target is what the original model computes from its own.
residual    `fit` aims at the original's residual stream behind attn_output and ffn_down, so that they take back what
            has gone wrong before them.
shift       a skipped input counts as its mean μ: z = S(x − μ), the bias is W μ.
cats        neurons are chosen by |silu(gate)|·|column of down|: `down` is the fraction of the rows of up and of the
            columns of down, `gu` that of the inputs of gate (Lee et al. 2024, CATS).
rotate      the residual stream in the basis of the principal components of its normalized values, all layers together.
heads       the outputs of each value head in the basis of their principal components.
threshold   what is above a threshold that leaves the fraction on average, instead of the largest of each token.
first       the first token of each chunk is computed whole, with the dense weights.

Scores are WINA's: |x| times the norm of the input's weights in all matrices that read it. In `fit` tokens count by
w = 1 / |x|² of the original model's input, and at attn_output and ffn_down of its residual stream: a few first tokens
would own the sums otherwise. Kept is the share of the weights of all block matrices that is read by tokens behind the
first, perplexity and divergence those of `seeddelta eval` (second halves of chunks, against the original model), drift
|x − dense|² / |dense|² of the residual stream behind each layer, for first tokens and for all others. All methods run
side by side, the dense one once. A chunk takes about three CPU seconds a method; `fit` needs those of calibration, too,
and `share` some minutes to measure the prices. `--json` has one entry a `--name`, with its settings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "research" / "token_weights"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from common import machine  # noqa: E402
from gradient_covariance import Llama  # noqa: E402
from seeddelta.session import bos_token, plan_chunks, read_text, tokenize  # noqa: E402
from seeddelta.sparsify.allocate import allocate  # noqa: E402
from sparsity_network import F64, INPUTS, Method, Network, Stream  # noqa: E402
from tqdm.auto import tqdm  # noqa: E402


def prices(network: Network, windows: npt.NDArray[np.int32]) -> dict[tuple[str, int], float]:
    """Divergence of a unit of left-out energy, by input and layer: half of each input is skipped, one at a time."""
    layers = range(network.llama.layers)
    probes = [(name, layer) for layer in layers for name in INPUTS]
    x = network.w["token_embd"][windows]
    streams = [Stream(Method(name, {f"{name}@{layer}": 0.5}, frozenset()), x, 0) for name, layer in probes]
    for layer in tqdm(layers, unit="layer", desc="prices", mininterval=10):
        dense = network.dense_layer(x, layer)
        for stream in streams:
            network.layer(stream, layer, x, dense)
        x = dense[-1]
    network.score(x, streams, windows)
    found = {}
    for (name, layer), stream in zip(probes, streams, strict=True):
        profile = network.profile(name, layer, frozenset())
        found[name, layer] = max(float(np.concatenate(stream.kl).mean()), 1e-9) / profile.dropped_at(0.5)
    return found


def allocated(network: Network, method: Method, price: dict[tuple[str, int], float]) -> Method:
    """The fractions that read `share` of the weights at the least expected divergence."""
    profiles = [network.profile(name, layer, method.flags) for name, layer in price]
    kept = allocate(profiles, list(price.values()), method.keep["share"])
    keep = {f"{name}@{layer}": one for (name, layer), one in zip(price, kept, strict=True)}
    return Method(method.spec, keep, method.flags)


def windows_of(tokenizer: Any, path: Path, count: int, ctx: int) -> npt.NDArray[np.int32]:
    """Chunks as llama-perplexity cuts them, int32 [chunks, ctx]."""
    tokens, bos = tokenize(tokenizer, read_text(path)), bos_token(tokenizer)
    count = plan_chunks(len(tokens), ctx, count)
    windows = tokens[: count * ctx].reshape(count, ctx).copy()
    if bos is not None:
        windows[:, 0] = bos
    return windows


def result(stream: Stream, dense: Sequence[F64]) -> dict[str, Any]:
    pairs = [pair for pairs in stream.read.values() for pair in pairs]
    difference = np.concatenate(stream.nll) - np.concatenate(dense)
    error = difference.std(ddof=1) / len(difference) ** 0.5
    total = sum(size for _, size in pairs)
    return {
        "method": stream.method.spec,
        "kept": sum(kept * size for kept, size in pairs) / total,
        "kept_by_input": {name: float(np.mean([kept for kept, _ in stream.read[name]])) for name in stream.read},
        "perplexity_percent": float(np.expm1(difference.mean()) * 100),
        "perplexity_percent_error": float(np.exp(difference.mean()) * error * 100),
        "drift": stream.drift,
        "kl": float(np.concatenate(stream.kl).mean()),
        "kl_error": float(np.concatenate(stream.kl).std(ddof=1) / len(difference) ** 0.5),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="dense GGUF of the architecture llama")
    parser.add_argument("--calibrate", type=Path, required=True, help="text that weights, means and bases are found on")
    parser.add_argument("--text", type=Path, required=True, help="text that is scored")
    parser.add_argument("--calibration-chunks", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=16, help="that are scored (default: %(default)s)")
    parser.add_argument("--probe-chunks", type=int, default=1, help="for `share` (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument("--method", action="append", required=True, help="see above; may be given often")
    parser.add_argument("--ridge", type=float, default=0.3, help="λ over the mean square (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="chunks at a time (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results into this file, which keeps those of other names")
    parser.add_argument("--name", default="all", help="of these results (default: %(default)s)")
    options = parser.parse_args(arguments)
    import llama_cpp

    methods = [Method.parse(spec) for spec in options.method]
    tokenizer = llama_cpp.Llama(str(options.model), vocab_only=True, verbose=False)
    first = windows_of(tokenizer, options.calibrate, options.calibration_chunks, options.ctx)
    second = windows_of(tokenizer, options.text, options.chunks, options.ctx)
    tokenizer.close()
    network = Network(Llama(options.model), options.threads, options.ridge)
    network.study(network.w["token_embd"][first[:8]])
    if any("share" in method.keep for method in methods):
        halves = first[: options.probe_chunks].reshape(2 * options.probe_chunks, -1).copy()
        halves[:, 0] = first[0, 0]  # BOS where the model wants it
        price = prices(network, halves)
        methods = [allocated(network, one, price) if "share" in one.keep else one for one in methods]
    if not any(method.calibrated for method in methods):
        first = first[:0]
    x = network.w["token_embd"][np.concatenate([first, second])]
    streams = [
        Stream(method, x if method.calibrated else x[len(first) :], len(first) if method.calibrated else 0)
        for method in methods
    ]
    start = time.perf_counter()
    for layer in tqdm(range(network.llama.layers), unit="layer", mininterval=10):
        dense = network.dense_layer(x, layer)
        for stream in streams:
            network.layer(stream, layer, x, dense)
            after, now = dense[-1][len(first) :], stream.x[stream.calibration :]
            relative = ((now - after) ** 2).sum(-1) / (after**2).sum(-1)
            stream.drift.append((float(relative[:, 0].mean()), float(relative[:, 1:].mean())))
        x = dense[-1]
    nll = network.score(x[len(first) :], streams, second)
    ppl = float(np.exp(np.concatenate(nll).mean()))
    results = [result(stream, nll) for stream in streams]
    for found in results:
        print(
            f"{found['kept']:.3f}  {found['perplexity_percent']:+6.2f} ± {found['perplexity_percent_error']:.2f}%  "
            f"KL {found['kl']:.4f} ± {found['kl_error']:.4f}  {found['method']}"
        )
    print(f"dense perplexity {ppl:.3f}; {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if options.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        runs = json.loads(options.json.read_text()) if options.json.exists() else {}
        runs[options.name] = {"machine": machine(), "settings": settings, "perplexity": ppl, "results": results}
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
