"""Price of matrices as predicted from gradients and inputs, beside the divergence that each of them alone causes.

    python benchmarks/bench_prices.py --text wiki.test.txt [--dense model-f16.gguf]

Some matrices, spread over the layers and kinds, are encoded at --bits one at a time, the rest stays as it is; KL from
the original is measured on --chunks chunks of a text that the calibration has not seen. Writes JSON: the pairs and
their rank correlation. With --reuse the gradients and covariances that lie in --work are taken.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import common
import seeddelta
from scipy.stats import spearmanr
from seeddelta.calibrate import capture, capture_gradient, write_covariance
from seeddelta.calibrate.gradient_file import open_gradient
from seeddelta.calibrate.text import read_texts, text_files
from seeddelta.convert.budget import CODE_ERROR
from seeddelta.convert.prices import price
from seeddelta.gguf import names
from seeddelta.gguf.source import open_source

CTX, CHUNKS = 512, 48  # of the package's text for the covariances, as quantize has them


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text to measure the divergence on")
    parser.add_argument("--chunks", type=int, default=16, help="chunks of the text (default: %(default)s)")
    parser.add_argument("--matrices", type=int, default=20, help="matrices to encode (default: %(default)s)")
    parser.add_argument("--bits", type=float, default=3, help="bits per weight of the matrix (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="threads (default: all cores)")
    parser.add_argument("--reuse", action="store_true", help="take gradients and covariances from --work")
    options = parser.parse_args()
    dense = common.dense_model(options.dense, options.work)
    gradient, covariance = (options.work / f"{dense.stem}-prices-{name}.gguf" for name in ("gradient", "covariance"))
    recipe = seeddelta.Recipe(input=dense, output=options.work / f"{dense.stem}-one.gguf", threads=options.threads)
    if not (options.reuse and gradient.exists()):
        capture_gradient(dense, None, gradient, threads=options.threads, price=partial(price, recipe=recipe))
    if not (options.reuse and covariance.exists()):
        tokens = read_texts(dense, text_files(None), CTX, CHUNKS).tokens.ravel()
        write_covariance(covariance, capture(dense, tokens, ctx=CTX, targets="all,embd", threads=options.threads))
    prices = open_gradient(gradient)
    pairs = []
    for name in _spread(list(open_source(dense).tensors), options.matrices):
        value = prices.price(name)
        if value is None:
            continue
        found = _alone(options, recipe, name, gradient, covariance)
        pairs.append({"tensor": name, "predicted": value * CODE_ERROR[options.bits]} | found)
        print(json.dumps(pairs[-1]), file=sys.stderr)
    ranks = spearmanr([pair["predicted"] for pair in pairs], [pair["kl"] for pair in pairs])
    result = {
        "benchmark": options.name or "prices",
        "settings": {"bits": options.bits, "chunks": options.chunks, "text": options.text.name, "model": dense.name},
        "rank_correlation": float(ranks.statistic),
        "sum_predicted": sum(pair["predicted"] for pair in pairs),
        "sum_measured": sum(pair["kl"] for pair in pairs),
        "pairs": pairs,
    }
    print(f"rank correlation {result['rank_correlation']:.3f}")
    common.save(options.name or "prices", result, options.results)
    return 0


def _spread(tensors: list[str], count: int) -> list[str]:
    """Embedding and output matrix, and matrices of blocks such that kinds and layers take turns."""
    blocks = [(place, name) for name in tensors if (place := names.split_name(name)) and "norm" not in name]
    kinds = sorted({kind for (_, kind), _ in blocks})
    layers = 1 + max(layer for (layer, _), _ in blocks)
    found = [name for name in names.MODEL_TENSORS if name in tensors]
    wanted = count - len(found)
    by_place = {place: name for place, name in blocks}
    return found + [by_place[at * (layers - 1) // max(wanted - 1, 1), kinds[at % len(kinds)]] for at in range(wanted)]


def _alone(options: Any, recipe: seeddelta.Recipe, name: str, gradient: Path, covariance: Path) -> dict[str, float]:
    """Divergence of a model of which one matrix is encoded."""
    one = recipe.model_copy(update={
        "targets": ("all", "embd", "head"), "tensor_type": (".=dense", f"^{re.escape(name)}$={options.bits:g}"),
        "hessian": covariance, "gradient": gradient if open_gradient(gradient).has(name) else None, "resume": False,
    })  # fmt: skip
    seeddelta.build(one, progress=False)
    compared = seeddelta.evaluate(
        [recipe.input, one.output], text=options.text, chunks=options.chunks, reps=0, threads=options.threads or None,
        progress=False,
    )  # fmt: skip
    divergence = compared.models[1].divergence
    assert divergence is not None
    return {"kl": divergence.mean, "stderr": divergence.stderr}


if __name__ == "__main__":
    sys.exit(main())
