"""Groups of matrices whose sensitivity is measured together: a role in a band of layers, such as attn_v of 10-12."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..gguf import names


@dataclass(frozen=True)
class Group:
    """Matrices that get one rate. `role` is the target (attn_v, …; embd, head), `name` adds layers: "attn_v 10-12"."""

    name: str
    role: str
    tensors: tuple[str, ...]


def make_groups(tensors: Iterable[str], bands: int, *, detail: bool = False) -> list[Group]:
    """Groups of target tensors, in the order of the layers.

    The first and the last layer are bands of their own, for they differ most; those between are cut into `bands` of
    about equal length. With `detail` every layer is one.
    """
    found: dict[str, dict[int, str]] = {}
    alone = []
    for name in tensors:
        place = names.split_name(name)
        if place is None:
            role = names.label_of(name)
            alone.append(Group(role, role, (name,)))
        else:
            found.setdefault(place[1], {})[place[0]] = name
    layers = sorted({layer for roles in found.values() for layer in roles})
    groups = []
    for band in _bands(layers, len(layers) if detail else bands):
        for role, by_layer in found.items():
            inside = [layer for layer in band if layer in by_layer]
            if inside:
                text = f"{inside[0]}" if len(inside) == 1 else f"{inside[0]}-{inside[-1]}"
                groups.append(Group(f"{role} {text}", role, tuple(by_layer[layer] for layer in inside)))
    return groups + alone


def _bands(layers: list[int], count: int) -> list[list[int]]:
    if len(layers) <= 3 or count >= len(layers) - 2:
        return [[layer] for layer in layers]
    middle = layers[1:-1]
    cuts = [round(at * len(middle) / count) for at in range(count + 1)]
    return [layers[:1], *(middle[a:b] for a, b in pairwise(cuts)), layers[-1:]]
