"""Which tensors of a model can be converted: matrices by name and shape that llama.cpp's graph uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import names
from .header import Header, TensorInfo

_GEMMA3N_KV_LAYERS = 20  # layers with a K/V cache of their own, src/models/gemma3n.cpp
MTP, SHARED_KV = "of a block that predicts further tokens", "of a layer that uses the keys and values of another"


def _number(header: Header, key: str) -> int:
    architecture = header.metadata.scalar("general.architecture", str, "")
    value = header.metadata.get(f"{architecture}.{key}", 0)
    found = np.atleast_1d(np.asarray(value)) if isinstance(value, (int, np.ndarray)) else np.zeros(1)
    return int(found.max()) if found.size else 0


def computed_layers(header: Header) -> int | None:
    """Layers that a token passes: block_count without the blocks that predict further tokens; None without a count."""
    count = _number(header, "block_count")
    return count - _number(header, "nextn_predict_layers") if count else None


def idle_tensors(header: Header) -> dict[str, str]:
    """Matrices that the graph of llama.cpp's decoder never uses, and why: such a one is `MTP` or `SHARED_KV`."""
    layers = computed_layers(header)
    if layers is None:
        return {}
    with_cache = layers - _number(header, "attention.shared_kv_layers")
    if header.metadata.scalar("general.architecture", str, "") == "gemma3n":
        with_cache = min(layers, _GEMMA3N_KV_LAYERS)
    idle = {}
    for name in header.tensors:
        place = names.split_name(name)
        if place is not None and place[0] >= layers:
            idle[name] = MTP
        elif place is not None and place[0] >= with_cache and place[1] in ("attn_k", "attn_v"):
            idle[name] = SHARED_KV
    return idle


def has_matrix_shape(info: TensorInfo) -> bool:
    """True for two dimensions, or three where the name says that it is a stack of matrices; one row is a vector."""
    if len(info.shape) != (3 if names.is_stacked(info.name) else 2):
        return False
    return info.shape[-2] > 1


def convertible(header: Header) -> dict[str, TensorInfo]:
    """All tensors that can be converted, in the order of the file."""
    idle = idle_tensors(header)
    return {
        name: info
        for name, info in header.tensors.items()
        if names.is_matrix(name) and name not in idle and has_matrix_shape(info)
    }


def chosen(header: Header, targets: Sequence[str], layers: str | None) -> list[TensorInfo]:
    """Convertible tensors that are one of `targets` (names.parse_targets) in one of `layers`.

    Raises RecipeError for layers that the model does not have.
    """
    wanted = names.parse_layers(layers, _number(header, "block_count") or None)
    return [info for name, info in convertible(header).items() if names.is_target(name, targets, wanted)]
