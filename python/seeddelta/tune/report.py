"""What an autotuning found and decided, as JSON and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from .._extras import needs_extra
from ..build.report import human_bytes
from .verify import Candidate, paired

if TYPE_CHECKING:
    from rich.table import Table

_FROZEN = ConfigDict(frozen=True)


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
        return self.model_dump_json(indent=2) + "\n"

    def to_table(self) -> Table:
        """rich table of the groups: rates by role and layers, with what each costs."""
        with needs_extra("cli"):
            from rich.table import Table

        table = Table(title=f"divergence of each group alone at {self.reference:g} bits, and its rate")
        table.add_column("group", no_wrap=True)
        for heading in ("weights", "KL, nats", "nats a million weights", "rate", "predicted KL"):
            table.add_column(heading, justify="right", no_wrap=True)
        for group in self.groups:
            table.add_row(
                group.name,
                f"{group.weights / 1e6:.2f} M",
                f"{group.kl:.5f} ± {group.kl_stderr:.5f}",
                f"{1e6 * group.kl / group.weights:.5f}",
                group.rate if isinstance(group.rate, str) else f"{group.rate:g}",
                f"{group.predicted_kl:.5f}",
            )
        return table

    def candidates_table(self) -> Table:
        """rich table of what was built and compared on the held-out text."""
        with needs_extra("cli"):
            from rich.table import Table

        table = Table(title="held-out text")
        table.add_column("model")
        for heading in ("bits a weight", "matrices", "KL, nats", "predicted", "from uniform (paired)", "perplexity"):
            table.add_column(heading, justify="right")
        for one in self.candidates:
            difference = "" if self.uniform is None or one == self.uniform else "{:+.5f} ± {:.5f}".format(
                *paired(one, self.uniform)
            )  # fmt: skip
            table.add_row(
                one.name,
                f"{one.bits_per_weight:.3f}",
                human_bytes(one.target_bytes),
                f"{one.kl:.5f} ± {one.kl_stderr:.5f}",
                "" if one.predicted_kl is None else f"{one.predicted_kl:.5f}",
                difference,
                f"{one.change:+.2f}% ± {one.change_stderr:.2f}",
            )
        return table
