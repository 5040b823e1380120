"""What an autotuning found and decided, as JSON and as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from .. import html
from ..convert.report import human_bytes
from ..errors import needs_extra
from .verify import Candidate, paired

if TYPE_CHECKING:
    from rich.table import Table

_FROZEN = ConfigDict(frozen=True)
GROUP_COLUMNS = ("group", "weights", "KL, nats", "nats a million weights", "rate", "predicted KL")
CANDIDATE_COLUMNS = (
    "model",
    "bits per weight",
    "matrices",
    "KL, nats",
    "predicted",
    "from uniform (paired)",
    "perplexity",
)


class GroupReport(BaseModel):
    """A group: measured divergence at the reference rate, the rate chosen, and what is predicted there, in nats."""

    model_config = _FROZEN
    name: str
    tensors: int
    weights: int
    kl: float
    kl_stderr: float
    rate: float | Literal["dense", "mixed"]
    predicted_kl: float


class CheckReport(BaseModel):
    """A group measured at another rate, to say how good the predictions are."""

    model_config = _FROZEN
    group: str
    rate: float
    predicted_kl: float
    measured_kl: float


class TuneReport(BaseModel):
    """`decision`: tuned, repaired (tuned with the sensitivities trusted less), uniform (rolled back to rates as equal
    as the bytes allow, which was not worse), or unverified. `additivity` is the divergence with all groups encoded over
    the sum of theirs, `accuracy` the standard deviation of ln(measured / predicted) in the checks.
    """

    model_config = _FROZEN
    recipe: Path
    model: Path | None
    decision: Literal["tuned", "repaired", "uniform", "unverified"]
    message: str
    reference: float
    additivity: float
    accuracy: float
    bits_per_weight: float
    target_bytes: int
    predicted_kl: float
    groups: tuple[GroupReport, ...]
    checks: tuple[CheckReport, ...]
    chosen: Candidate | None
    uniform: Candidate | None
    candidates: tuple[Candidate, ...]
    evaluations: int
    restored: int
    seconds: float

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def to_table(self) -> Table:
        """rich table of the groups: rates by role and layers, with what each costs."""
        title = f"divergence of each group alone at {self.reference:g} bits, and its rate"
        return _rich(title, GROUP_COLUMNS, self._group_rows())

    def candidates_table(self) -> Table:
        """rich table of what was built and compared on the held-out text."""
        return _rich("held-out text", CANDIDATE_COLUMNS, self._candidate_rows())

    def _group_rows(self) -> list[tuple[str, ...]]:
        return [
            (
                group.name,
                f"{group.weights / 1e6:.2f} M",
                f"{group.kl:.5f} ± {group.kl_stderr:.5f}",
                f"{1e6 * group.kl / group.weights:.5f}",
                group.rate if isinstance(group.rate, str) else f"{group.rate:g}",
                f"{group.predicted_kl:.5f}",
            )
            for group in self.groups
        ]

    def _candidate_rows(self) -> list[tuple[str, ...]]:
        return [
            (
                one.name,
                f"{one.bits_per_weight:.3f}",
                human_bytes(one.target_bytes),
                f"{one.kl:.5f} ± {one.kl_stderr:.5f}",
                "" if one.predicted_kl is None else f"{one.predicted_kl:.5f}",
                ""
                if self.uniform is None or one == self.uniform
                else "{:+.5f} ± {:.5f}".format(*paired(one, self.uniform)),
                f"{one.change:+.2f}% ± {one.change_stderr:.2f}",
            )
            for one in self.candidates
        ]

    def _repr_html_(self) -> str:
        return (
            html.line(f"{self.decision}: {self.message}")
            + html.table(GROUP_COLUMNS, self._group_rows())
            + html.table(CANDIDATE_COLUMNS, self._candidate_rows())
        )


def _rich(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    with needs_extra("cli"):
        from rich.table import Table

    table = Table(title=title)
    table.add_column(columns[0], no_wrap=True)
    for heading in columns[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
