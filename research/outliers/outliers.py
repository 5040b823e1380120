"""Whether weights that are far larger than the others of their row should be stored apart.

    python research/outliers/outliers.py --hessian cov.gguf

An outlier is above `--above` times the root mean square of its row, in the columns as the encoder scales them. Every
matrix of the blocks is encoded at 4 bits with covariance feedback, as it is, and with its outliers left out and added
again as float16 with an index (6 bytes each). The error is that of the outputs under the covariance, over the outputs.
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
from seeddelta import Recipe
from seeddelta.calibrate.covariance import open_covariance
from seeddelta.convert.columns import column_factor
from seeddelta.convert.describe import describe
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import Feedback, covariance_error, make_feedback
from seeddelta.gguf import schema
from seeddelta.gguf.names import split_name
from seeddelta.gguf.source import open_source
from tqdm.auto import tqdm

F32 = npt.NDArray[np.float32]
BYTES = 6  # a float16 and an index of four bytes


def feedback_of(name: str, shape: tuple[int, int], covariance: F32, recipe: Recipe) -> Feedback:
    """As a build makes it."""
    base = describe(recipe, name, shape, "F16").base
    assert isinstance(base, schema.LanesBase)
    return make_feedback(
        name, covariance, rotation_block=base.rotation_block, seed=recipe.seed, damp=recipe.hessian_damp,
        column_power=recipe.covariance_power, code=schema.lane_code(base.code),
    )  # fmt: skip


def outliers(weights: F32, feedback: Feedback, above: float) -> npt.NDArray[np.bool_]:
    """Which weights are above `above` root mean squares of their row, columns scaled as they are encoded."""
    scaled = weights / column_factor(feedback.column_scale)
    return np.asarray(np.abs(scaled) > above * np.sqrt(np.mean(scaled**2, axis=1, keepdims=True)))


def _by_kind(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Matrices, outliers and mean change of the error of each kind of matrix."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(row["name"].split(".")[2] for row in rows):
        those = [row for row in rows if row["name"].split(".")[2] == kind]
        change = float(np.mean([row["error_apart"] / row["error"] - 1 for row in those]))
        found[kind] = {
            "matrices": len(those), "outliers": sum(row["outliers"] for row in those), "change": change,
            "largest_change": min(row["error_apart"] / row["error"] - 1 for row in those),
        }  # fmt: skip
        print(f"{kind:12} {len(those):4} matrices, {found[kind]['outliers']:5} outliers, error {change:+.2%}")
    return found


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--hessian", type=Path, required=True, help="covariance file of the original model")
    options.add_argument("--above", type=float, default=10, help="root mean squares of a row (default: %(default)s)")
    given = options.parse_args()
    dense = dense_model(given.dense, given.work)
    source, covariance = open_source(dense), open_covariance(given.hessian)
    recipe = Recipe(input=dense, output=Path("none"), bits=4, seed=1)
    rows: list[dict[str, Any]] = []
    for name in tqdm(source.tensors, unit="matrix"):
        if split_name(name) is None or not covariance.has(name):
            continue
        weights, h = source.matrix(name), covariance.matrix(name)
        feedback = feedback_of(name, weights.shape, h, recipe)
        apart = outliers(weights, feedback, given.above)
        errors = []
        for added in (np.zeros_like(weights), np.where(apart, weights, np.float32(0))):
            coded = decoded(encode_tensor(name, weights - added, "F16", recipe, None, feedback))
            errors.append(covariance_error(weights, added + coded, h))
        count = int(apart.sum())
        rows.append(
            {
                "name": name, "weights": weights.size, "outliers": count, "bits": 8 * BYTES * count / weights.size,
                "error": errors[0], "error_apart": errors[1],
            }
        )  # fmt: skip
    save(given.name or "outliers", {"settings": {"above": given.above}, "kinds": _by_kind(rows)}, given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
