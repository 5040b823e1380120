"""Whether weights that are far larger than the others of their row should be stored apart.

    python research/outliers/outliers.py --hessian cov.gguf --matrices 210 --bits 4

An outlier is above `--above` times the root mean square of its row, in the columns as the encoder scales them. All
matrices of the blocks are counted. Those with most of their energy in outliers are encoded with covariance feedback, as
they are, and with the outliers left out and added again as float16 with an index (6 bytes each). The error is that of
the outputs under the covariance, over the outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import numpy as np
import numpy.typing as npt
from bench_tensors import decoded
from common import dense_model, parser, save
from seeddelta import Recipe, _core
from seeddelta.calibrate.covariance import Covariance, open_covariance
from seeddelta.convert.columns import column_factor, column_scale
from seeddelta.convert.describe import describe
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import Feedback, covariance_error, make_feedback
from seeddelta.gguf import schema
from seeddelta.gguf.names import split_name
from seeddelta.gguf.source import open_source
from tqdm.auto import tqdm

F32 = npt.NDArray[np.float32]
BYTES = 6  # a float16 and an index of four bytes


def feedback_of(name: str, shape: tuple[int, int], covariance: Covariance, recipe: Recipe) -> Feedback:
    """As a build makes it."""
    base = describe(recipe, name, shape, "F16").base
    assert isinstance(base, schema.LanesBase)
    return make_feedback(
        name, covariance.matrix(name), rotation_block=base.rotation_block, seed=recipe.seed, damp=recipe.hessian_damp,
        column_power=recipe.covariance_power, code=_core.lane_codes()[base.code],
    )  # fmt: skip


def outliers(weights: F32, covariance: F32, recipe: Recipe, above: float) -> npt.NDArray[np.bool_]:
    """Which weights are above `above` root mean squares of their row, columns scaled as they are encoded."""
    diagonal = np.diagonal(covariance)
    scaled = weights / column_factor(
        column_scale(np.maximum(diagonal, 1e-7 * diagonal.mean()), recipe.covariance_power)
    )
    return np.asarray(np.abs(scaled) > above * np.sqrt(np.mean(scaled**2, axis=1, keepdims=True)))


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--hessian", type=Path, required=True, help="covariance file of the dense model")
    options.add_argument("--above", type=float, default=10, help="root mean squares of a row (default: %(default)s)")
    options.add_argument("--bits", default="4,2", help="bits a weight (default: %(default)s)")
    options.add_argument("--matrices", type=int, default=6, help="that are encoded (default: %(default)s)")
    given = options.parse_args()
    dense = dense_model(given.dense, given.work)
    source, covariance = open_source(dense), open_covariance(given.hessian)
    names = [name for name in source.tensors if split_name(name) is not None and covariance.has(name)]
    recipes = [Recipe(input=dense, output=Path("none"), bits=float(bits), seed=1) for bits in given.bits.split(",")]
    rows: list[dict[str, Any]] = []
    for name in tqdm(names, unit="matrix"):
        weights = source.matrix(name)
        apart = outliers(weights, covariance.matrix(name), recipes[0], given.above)
        energy = float(np.square(weights[apart]).sum() / np.square(weights).sum())
        rows.append({"name": name, "weights": weights.size, "outliers": int(apart.sum()), "energy": energy})
    for row in tqdm(sorted(rows, key=lambda row: -row["energy"])[: given.matrices], unit="matrix"):
        weights = source.matrix(row["name"])
        row["errors"] = {}
        for recipe in recipes:
            feedback = feedback_of(row["name"], weights.shape, covariance, recipe)
            apart = outliers(weights, covariance.matrix(row["name"]), recipe, given.above)
            alone = np.where(apart, weights, np.float32(0))
            errors = [
                covariance_error(
                    weights,
                    added + decoded(encode_tensor(row["name"], weights - added, "F16", recipe, None, feedback)),
                    covariance.matrix(row["name"]),
                )
                for added in (np.zeros_like(weights), alone)
            ]
            row["errors"][f"{recipe.bits:g}"] = errors
        row["bits"] = 8 * BYTES * row["outliers"] / row["weights"]
        print(row["name"], row["outliers"], f"{row['energy']:.5f}", row["errors"], f"{row['bits']:.5f} bits")
    count, whole = sum(row["outliers"] for row in rows), sum(row["weights"] for row in rows)
    print(f"{count} of {whole} weights")
    save(given.name or "outliers", {"settings": {"above": given.above}, "matrices": rows}, given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
