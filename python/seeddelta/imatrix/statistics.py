"""How unevenly the columns of each input matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .capture import Capture

if TYPE_CHECKING:
    from rich.table import Table


def spread(sums: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Of float64 [n_in] sums of squares: standard deviation of the logarithm, largest over mean, and the share of the
    largest hundredth of the columns."""
    used = sums[sums > 0]
    if used.size == 0:
        return 0.0, 0.0, 0.0
    top = np.sort(sums)[::-1][: max(1, sums.size // 100)]
    return float(np.log(used).std()), float(sums.max() / sums.mean()), float(top.sum() / sums.sum())


def statistics_table(captured: Capture) -> Table:
    """A rich table, a line an input; E[x²] as it is and of token-normalised inputs."""
    from rich.table import Table

    table = Table(title=f"{captured.tokens} tokens of {captured.text_name}")
    table.add_column("input of")
    for kind in ("x²", "x̂²"):
        for column in (f"σ log {kind}", "max/mean", "top 1%"):
            table.add_column(column, justify="right")
    for name in dict.fromkeys(captured.representatives.values()):
        cells = [*spread(captured.hook.square(name).sum(axis=0)), *spread(captured.hook.norm_square(name).sum(axis=0))]
        table.add_row(name, *(f"{c:.2f}" if i % 3 != 2 else f"{c:.0%}" for i, c in enumerate(cells)))
    return table
