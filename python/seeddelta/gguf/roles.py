"""Converted tensors summed up by role (ffn_up, attn_v, …): what commands, pages and notebooks show of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import hypot
from typing import TYPE_CHECKING, Any

from ..errors import needs_extra
from ..html import table
from . import names
from .schema import Norms

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("role", "tensors", "MB", "bits per weight", "error, %", "weighted, %")  # 80 columns


@dataclass(frozen=True)
class Item:
    """A converted tensor; `norms` is None where nothing was encoded yet."""

    name: str
    weights: int
    payload_bytes: int
    norms: Norms | None


@dataclass(frozen=True)
class RoleSums:
    """Some tensors together; `rel_l2` is ‖W−Ŵ‖/‖W‖ of all their weights, `rel_l2_w` the one by importance."""

    role: str
    tensors: int
    weights: int
    payload_bytes: int
    rel_l2: float | None
    rel_l2_w: float | None

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.payload_bytes / max(1, self.weights)

    @property
    def cells(self) -> tuple[str, ...]:
        """What the row shows under `HEADINGS`."""
        return (
            self.role,
            str(self.tensors),
            f"{self.payload_bytes / 1e6:.1f}",
            f"{self.bits_per_weight:.2f}",
            *("" if error is None else f"{100 * error:.1f}" for error in (self.rel_l2, self.rel_l2_w)),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"bits_per_weight": self.bits_per_weight}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> RoleSums:
        return cls(**{field.name: row[field.name] for field in fields(cls)})


def role_of(name: str) -> tuple[int | None, str]:
    """(layer, role) of a converted tensor: (3, "attn_q"), or (None, "embd") for what is in no layer."""
    return names.split_name(name) or (None, names.label_of(name))


def ratio(error: float, norm: float) -> float:
    """error / norm, with 0 for a tensor of zeros."""
    return error / norm if norm else 0.0


def sums_by_role(items: Iterable[Item], most: int | None = None) -> list[RoleSums]:
    """Sums of the tensors of each role, in the order of the file.

    With `most` there are at most so many: the largest ones, and the rest as one.
    """
    roles: dict[str, list[Item]] = {}
    for item in items:
        roles.setdefault(role_of(item.name)[1], []).append(item)
    if most is None or len(roles) <= most:
        return [sums_of(role, found) for role, found in roles.items()]
    by_size = sorted(roles, key=lambda role: sum(item.payload_bytes for item in roles[role]), reverse=True)
    kept, rest = set(by_size[: most - 1]), by_size[most - 1 :]
    others = [item for role in rest for item in roles[role]]
    return [
        *(sums_of(role, found) for role, found in roles.items() if role in kept),
        sums_of(f"{len(rest)} other roles", others),
    ]


def html_table(rows: Iterable[RoleSums]) -> str:
    """The sums as a table for a notebook."""
    return table(HEADINGS, [row.cells for row in rows])


def terminal_table(rows: Iterable[RoleSums], totals: Iterable[RoleSums]) -> Table:
    """The sums as a rich table, and totals below a line. Needs the extra `cli`."""
    with needs_extra("cli"):
        from rich.table import Table

    rows = list(rows)
    headings = HEADINGS if any(row.rel_l2 is not None for row in rows) else HEADINGS[:-2]
    found = Table(title="matrices by role")
    found.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        found.add_column(heading, justify="right", no_wrap=True)
    for part in (rows, totals):
        found.add_section()
        for row in part:
            found.add_row(*row.cells[: len(headings)])
    return found


def sums_of(title: str, items: Sequence[Item]) -> RoleSums:
    """The sums of some tensors, under a title."""
    norms = [item.norms for item in items if item.norms is not None]
    plain = weighted = None
    if norms:
        plain = ratio(hypot(*(one.err for one in norms)), hypot(*(one.w for one in norms)))
        weighted = ratio(hypot(*(one.err_w for one in norms)), hypot(*(one.w_w for one in norms)))
    weights, payload = sum(item.weights for item in items), sum(item.payload_bytes for item in items)
    return RoleSums(title, len(items), weights, payload, plain, weighted)
