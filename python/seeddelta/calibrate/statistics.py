"""How unevenly the columns of each input matter: of a capture, and of an imatrix file as llama-imatrix shows it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..gguf.imatrix import Imatrix
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
    """A rich table, a line an input; E[x²] as it is and of token-normalized inputs."""
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


_ACTIVE = 1e-5  # llama-imatrix's threshold
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class EntryStatistics:
    """Of E[x²] over the columns of an entry (of all experts that were chosen), as `llama-imatrix --show-statistics` has
    them.

    total, smallest, largest, mean, deviation: of E[x²]. active: share of columns above 1e-5. entropy: in bits, of the
    columns' shares of the total; `evenness` is its part of log2(columns), 1 when all matter alike. outliers: share of
    columns more than one deviation above the mean (ZD). similarity: cosine with the sums of the same matrix one layer
    before, None for the first.
    """

    name: str
    columns: int
    total: float
    smallest: float
    largest: float
    mean: float
    deviation: float
    active: float
    entropy: float
    outliers: float
    similarity: float | None

    @property
    def evenness(self) -> float:
        return self.entropy / float(np.log2(self.columns)) if self.columns > 1 else 1.0


def imatrix_statistics(imatrix: Imatrix) -> list[EntryStatistics]:
    """By layer and name. Entries that nothing was counted for are left out."""
    found = []
    for name, entry in imatrix.entries.items():
        used = entry.counts > 0
        if not used.any():
            continue
        values = (entry.sums[used].astype(np.float64) / entry.counts[used, None]).ravel()
        total, mean, deviation = float(values.sum()), float(values.mean()), float(values.std())
        share = values[values > 0] / total if total else np.empty(0)
        found.append(
            EntryStatistics(
                name=name,
                columns=values.size,
                total=total,
                smallest=float(values.min()),
                largest=float(values.max()),
                mean=mean,
                deviation=deviation,
                active=float((values > _ACTIVE).mean()),
                entropy=float(-(share * np.log2(share)).sum()),
                outliers=float((values > mean + deviation).mean()) if deviation else 0.0,
                similarity=_similarity(imatrix, name),
            )
        )
    return sorted(found, key=lambda one: (_layer(one.name), one.name))


def imatrix_table(imatrix: Imatrix) -> Table:
    """A rich table of `imatrix_statistics`, a line an entry."""
    from rich.table import Table

    table = Table(title=f"{imatrix.path}: mean squares of {len(imatrix.entries)} inputs, {imatrix.chunk_count} chunks")
    table.add_column("input of", no_wrap=True)
    for column in ("columns", "Σ", "min", "max", "mean", "σ", "active", "entropy", "evenness", "ZD", "similarity"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in imatrix_statistics(imatrix):
        numbers = (f"{x:.4g}" for x in (one.total, one.smallest, one.largest, one.mean, one.deviation))
        shares = (f"{one.active:.1%}", f"{one.entropy:.2f}", f"{one.evenness:.1%}", f"{one.outliers:.1%}")
        similarity = "" if one.similarity is None else f"{one.similarity:.4f}"
        table.add_row(one.name, f"{one.columns}", *numbers, *shares, similarity)
    return table


def _layer(name: str) -> int:
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _similarity(imatrix: Imatrix, name: str) -> float | None:
    before = imatrix.entries.get(_LAYER.sub(f"blk.{_layer(name) - 1}.", name))
    here = imatrix.entries[name]
    if _layer(name) < 1 or before is None or before.sums.shape != here.sums.shape:
        return None
    a, b = here.sums.astype(np.float64).ravel(), before.sums.astype(np.float64).ravel()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else None
