"""Neurons of the feed-forward layers in another order: those that matter for the same tokens become neighbours.

The neurons of a layer are the rows of gate and up and the columns of down; in another order they give the same model,
but for the order of the sums in down. Blocks of neighbours can then be skipped together (`--kwta-block`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..calibrate import open_covariance
from ..errors import ConfigError, SourceModelError
from ..gguf.reader import is_seeddelta
from ..gguf.source import SourceModel, open_source
from ..gguf.writer import PlannedTensor, Value, copied_metadata, write_gguf

_ROWS = ("ffn_gate.weight", "ffn_up.weight", "ffn_gate.bias", "ffn_up.bias")  # a row, or a value, a neuron
_KNOWN = (*_ROWS, "ffn_down.weight", "ffn_down.bias", "ffn_norm.weight", "ffn_norm.bias")
_PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
Order = npt.NDArray[np.intp]


def permute(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    covariance: str | os.PathLike[str],
    *,
    block: int = 16,
) -> dict[int, Order]:
    """Write the model with the neurons of every layer in an order made for blocks of `block`; returns the orders.

    `covariance` is that of the model's inputs (`seeddelta imatrix --hessian`); of the new model it is another one.
    Raises ConfigError for a block below 2 or a SeedΔ file, SourceModelError for a model without a plain feed-forward
    layer or whose ffn_down is quantised, ImatrixError for a covariance that does not fit, OutputError.
    """
    if block < 2:
        raise ConfigError(f"blocks of {block} have no neighbours; give 2 or more")
    if is_seeddelta(model):
        raise ConfigError(f"{model}: neurons are reordered before a SeedΔ file is built; give the dense model")
    source, known = open_source(model), open_covariance(covariance)
    orders = {}
    for layer in _layers(source):
        down = f"blk.{layer}.ffn_down.weight"
        norm = np.linalg.norm(source.matrix(down), axis=0)
        together = np.abs(known.matrix(down))
        if together.shape != (len(norm), len(norm)):
            raise ConfigError(f"{covariance}: {down!r} has {len(together)} inputs there and {len(norm)} in {model}")
        orders[layer] = block_order(together * norm * norm[:, None], block)
    plan = [PlannedTensor(info.name, info.shape, info.type) for info in source.tensors.values()]

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        yield _reordered(source, tensor, orders)

    metadata: dict[str, Value] = copied_metadata(source.header)
    write_gguf(output, metadata, plan, chunks)
    return orders


def block_order(together: npt.NDArray[np.floating[Any]], block: int) -> Order:
    """An order of n units in which every `block` in a row belong together as far as a greedy choice finds it.

    `together` [n, n] says how much two units matter for the same tokens. A block begins with the unit of the largest
    diagonal that is left, and takes the one that has most in common with all of it, until it is full.
    """
    strength = np.diagonal(together).astype(np.float64)
    left = np.ones(len(strength), bool)
    order: list[int] = []
    while left.any():
        common, rest = strength, min(block, int(left.sum()))
        for place in range(rest):
            unit = int(np.argmax(np.where(left, common, -np.inf)))
            left[unit] = False
            order.append(unit)
            common = together[unit] + (0 if place == 0 else common)
    return np.array(order, np.intp)


def _layers(source: SourceModel) -> list[int]:
    """Layers with a feed-forward layer of one matrix each for gate, up and down."""
    layers = [layer for layer in range(source.n_layers or 0) if f"blk.{layer}.ffn_down.weight" in source.tensors]
    if not layers:
        raise SourceModelError(f"{source.path}: no layer has the matrix ffn_down; look with seeddelta inspect")
    for layer in layers:
        prefix = f"blk.{layer}."
        down = source.tensors[f"{prefix}ffn_down.weight"]
        if down.type.name not in _PLAIN:
            raise SourceModelError(
                f"{source.path}: {down.name!r} has the type {down.type.name}, whose columns lie in blocks; "
                "start from an F16 model (seeddelta dequantize)"
            )
        for name, info in source.tensors.items():
            suffix = name.removeprefix(prefix)
            if suffix == name or not suffix.startswith("ffn_"):
                continue
            if suffix not in _KNOWN or (suffix in _ROWS and info.shape[0] != down.shape[1]):
                raise SourceModelError(f"{source.path}: neurons with the tensor {name!r} cannot be reordered")
    return layers


def _reordered(source: SourceModel, tensor: PlannedTensor, orders: dict[int, Order]) -> np.ndarray[Any, Any]:
    raw = source.raw(tensor.name)
    first, _, rest = tensor.name.partition(".")
    number, _, suffix = rest.partition(".")
    order = orders.get(int(number)) if first == "blk" and number.isdigit() else None
    if order is not None and suffix in _ROWS:
        return np.ascontiguousarray(raw.reshape(len(order), -1)[order])
    if order is not None and suffix == "ffn_down.weight":
        values = raw.view(_PLAIN[tensor.type.name]).reshape(tensor.shape)
        return np.ascontiguousarray(values[:, order])
    return raw
