"""Converted tensors summed up by role (ffn_up, attn_v, …): what commands, pages and notebooks show of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

from ..html import table
from . import names
from .schema import Norms


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "tensors": self.tensors,
            "weights": self.weights,
            "payload_bytes": self.payload_bytes,
            "bits_per_weight": self.bits_per_weight,
            "rel_l2": self.rel_l2,
            "rel_l2_w": self.rel_l2_w,
        }


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


def role_table(rows: Iterable[RoleSums], more: Iterable[tuple[str, ...]] = ()) -> str:
    """The sums as a table for a notebook; `more` are rows below."""
    shown = [
        (
            row.role,
            str(row.tensors),
            f"{row.weights / 1e6:.2f}",
            f"{row.payload_bytes / 1e6:.2f}",
            f"{row.bits_per_weight:.3f}",
            "" if row.rel_l2 is None else f"{100 * row.rel_l2:.2f}",
        )
        for row in rows
    ]
    return table(("role", "tensors", "weights, M", "MB", "bits", "error, %"), [*shown, *more])


def sums_of(title: str, items: Sequence[Item]) -> RoleSums:
    """The sums of some tensors, under a title."""
    norms = [item.norms for item in items if item.norms is not None]
    plain = weighted = None
    if norms:
        plain = ratio(hypot(*(one.err for one in norms)), hypot(*(one.w for one in norms)))
        weighted = ratio(hypot(*(one.err_w for one in norms)), hypot(*(one.w_w for one in norms)))
    weights, payload = sum(item.weights for item in items), sum(item.payload_bytes for item in items)
    return RoleSums(title, len(items), weights, payload, plain, weighted)
