"""What it costs that a walk of byte lanes in columns has 16 values and closes, by how its beginning is chosen.

    python research/columns/closed_walks.py
    python research/columns/closed_walks.py --units 64

Of unit Gaussians, for every code: the error of rows and of columns as the encoder has them, and that of an exact
search (here, in NumPy) over all 256 pairs of codes that a walk may begin after, over the pairs that some bounds rank
first, and from codes that are fixed. Errors are roots of mean squares at the scale of the search; seconds are of one
thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from seeddelta import _core

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from reference import column_lanes_values, lanes_values

WALKS, VALUES, ENDS = 16, 16, 256  # of a strip; pairs of codes
SCALE = 1.02  # of the search over the root mean square
F64 = npt.NDArray[np.float64]


def step_errors(code: _core.LaneCode, step: int, targets: F64) -> F64:
    """Squared errors [c2, c1, c0] of one step of a walk; `targets` [values of the step]."""
    at = step % len(code.emits)
    first = sum(code.emits[:at])
    c2, c1, c0 = np.ogrid[:16, :16, :16]
    levels = [code.tables[first][0][(c0 + c2) & 15].astype(int) + code.tables[first][1][c1]]
    if code.emits[at] == 2:
        a, b = code.tables[first + 1]
        levels.append(a[(c0 + c1 + c2) & 15].astype(int) + b[c0])
    added = np.array([0])
    for amount in code.added:
        added = np.concatenate([added, added + amount])
    total = np.zeros((16, 16, 16))
    for value, level in enumerate(levels):
        left = targets[value] - level
        total += np.min([(left - extra) ** 2 for extra in added], axis=0)
    return total


def search(errors: list[F64], start: F64) -> F64:
    """Least cost of each end, [..., c1, c0], of one walk's steps [c2, c1, c0] from costs [..., c2, c1]."""
    cost = start
    for error in errors:
        cost = np.min(cost[..., None] + error, axis=-3)
    return cost


def walk_costs(errors: list[F64]) -> tuple[F64, F64]:
    """Costs [start, end] of one walk, and bounds [3, end] with the walk cut open at 1/4, 1/2 and 3/4."""
    steps = len(errors)
    any_start = np.full((ENDS, 16, 16), np.inf)
    any_start[np.arange(ENDS), np.arange(ENDS) // 16, np.arange(ENDS) % 16] = 0
    bounds, cost, before = [], any_start, 0
    for cut in (steps // 4, steps // 2, 3 * steps // 4):
        cost = search(errors[before:cut], cost)
        after = search(errors[cut:], np.zeros((16, 16)))
        bounds.append(cost.reshape(ENDS, ENDS).min(axis=1) + after.reshape(ENDS))
        before = cut
    return search(errors[before:], cost).reshape(ENDS, ENDS), np.array(bounds)


def exact(code: _core.LaneCode, walks: F64) -> dict[str, float]:
    """Mean squared error by the rule for the codes before a walk; walks [n, VALUES] in units of the tables."""
    closed: dict[str, list[float]] = {}
    fixed = np.zeros(ENDS)
    for walk in walks:
        errors, value, step = [], 0, 0
        while value < VALUES:
            emits = code.emits[step % len(code.emits)]
            errors.append(step_errors(code, step, walk[value : value + emits]))
            value, step = value + emits, step + 1
        costs, bounds = walk_costs(errors)
        fixed += costs.min(axis=1)
        own = costs.diagonal()
        order = np.argsort(bounds.sum(axis=0))
        rules = {"all": own.min(), "24": own[order[:24]].min(), "8": own[order[:8]].min()}
        for name, cost in (rules | {"1, one cut": own[bounds[1].argmin()]}).items():
            closed.setdefault(name, []).append(float(cost))
    mean = {name: float(np.mean(costs)) / VALUES for name, costs in closed.items()}
    return mean | {"fixed": float(fixed.min()) / len(walks) / VALUES}


def encoded(code: _core.LaneCode, weights: npt.NDArray[np.float32], by_column: bool) -> tuple[float, float]:
    """Mean squared error of a value, in units of the tables, of [n, 1024]; and seconds for a million weights."""
    n, length = weights.shape
    begin = time.perf_counter()
    if by_column:
        codes, _ = _core.columns_lanes_encode(weights, code=code, scale_factor=SCALE, threads=1)
        seconds = time.perf_counter() - begin
        values = column_lanes_values(codes, length, code.emits, code.tables, code.added)
    else:
        groups = [code.walk_steps(length)]
        codes, _ = _core.lanes_encode(weights, code=code, groups=groups, scale_factor=SCALE, threads=1)
        seconds = time.perf_counter() - begin
        values = lanes_values(codes, n, length, code.emits, code.tables, code.added)
    return float(np.mean((targets_of(code, weights) - values) ** 2)), seconds / weights.size * 1e6


def targets_of(code: _core.LaneCode, weights: npt.NDArray[np.float32]) -> F64:
    scale = np.sqrt(np.mean(weights.astype(float) ** 2, axis=1, keepdims=True)) * SCALE / code.deviation
    return np.asarray(weights / scale)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--units", type=int, default=32, help="of 1024 weights; whole searches are of 32 (default: %(default)s)"
    )
    given: Any = options.parse_args()
    weights = np.random.default_rng(1).standard_normal((given.units, 1024)).astype(np.float32)
    for code in sorted(_core.lane_codes(), key=lambda code: code.bits):
        walks = (
            targets_of(code, weights).reshape(given.units, -1, VALUES, WALKS).transpose(0, 1, 3, 2).reshape(-1, VALUES)
        )
        rows, row_seconds = encoded(code, weights, by_column=False)
        columns, column_seconds = encoded(code, weights, by_column=True)
        rules = exact(code, walks) | {"encoder": columns}
        ratios = "  ".join(f"{name} {np.sqrt(error / rows):.3f}" for name, error in rules.items())
        print(f"{code.bits:g} bits: rows {np.sqrt(rows) / code.deviation:.4f}, {row_seconds:.1f} s a million weights")
        print(f"  over it: {ratios}; {column_seconds / row_seconds:.1f} times the time", flush=True)


if __name__ == "__main__":
    main()
