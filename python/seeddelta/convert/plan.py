"""What a build will do before it does anything: targets, rates, recipes and calibration of every matrix."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from ..calibrate.covariance import Covariance, open_covariance
from ..calibrate.gradient_file import Gradient, open_gradient
from ..errors import ImatrixError, RecipeError, RecipeWarning, SourceModelError
from ..gguf import names, payload, targets
from ..gguf.header import TensorInfo
from ..gguf.imatrix import Imatrix, read_imatrix
from ..gguf.schema import TensorDescription
from ..gguf.source import SourceModel, can_dequantize, cannot_dequantize, open_source
from .budget import CODE_ERROR, costs, fit_rates, loss
from .describe import describe, with_fine
from .frequent import MOST_LOST, SHARES, FineTiles, Frequent, Parts, bits_of
from .rates import Proc, Rate, overridden, parse_override
from .recipe import Recipe, parse_size
from .rest import kept_tensor, rest_types

_KEY_BYTES = 4096  # of the keys that a build adds, without the entries of the tensors
_TABLE_BYTES = 800  # of a converted tensor in the file beside its payload


@dataclass(frozen=True)
class Plan:
    """What a recipe means for a model: target tensors in file order with their future descriptions.

    `recipes` has the recipe of each target: that of the build, with the tensor's own rate. `uncalibrated` are targets
    that neither the imatrix nor the covariance has; they are encoded without. The gradients may lack any target.
    """

    source: SourceModel
    imatrix: Imatrix | None
    covariance: Covariance | None
    targets: dict[str, TensorDescription]
    recipes: dict[str, Recipe]
    uncalibrated: tuple[str, ...] = ()
    gradient: Gradient | None = None
    rest: dict[str, GGMLQuantizationType] = field(default_factory=dict)  # of kept tensors that get another type
    fine: dict[str, FineTiles] = field(default_factory=dict)  # tiles of targets that have another rate

    @property
    def dense_bytes(self) -> int:
        kept = (name for name in self.source.tensors if name not in self.targets)
        return sum(kept_tensor(self.source, name, self.rest).nbytes for name in kept)

    @property
    def predicted_divergence(self) -> float | None:
        """Nats per token of all targets together, by their prices; None when not all of them were measured."""
        prices = {name: None if self.gradient is None else self.gradient.price(name) for name in self.targets}
        if any(prices[name] is None or recipe.proc_sparse for name, recipe in self.recipes.items()):
            return None
        return sum((prices[name] or 0) * self._error(name, recipe.bits) for name, recipe in self.recipes.items())

    def _error(self, name: str, bits: float) -> float:
        fine = self.fine.get(name)
        if fine is None:
            return CODE_ERROR[bits]
        return (1 - fine.share) * CODE_ERROR[bits] + fine.share * CODE_ERROR[fine.bits]

    @property
    def file_bytes(self) -> int:
        """Of the output at most, within some kilobytes."""
        return self.dense_bytes + self.payload_bytes + _table_bytes(self.source, len(self.targets))

    @property
    def payload_bytes(self) -> int:
        return sum(payload.payload_bytes(description) for description in self.targets.values())


def make_plan(recipe: Recipe, *, measured: bool = True, counts: npt.NDArray[np.int64] | None = None) -> Plan:
    """Open the inputs and choose the tensors. Without `measured` the covariances are not there yet.

    With a budget, `counts`, how often each token is in the text, let rows of frequent tokens have more bits.

    Raises SourceModelError (no target, or one of an unknown type), ImatrixError (unreadable, or of another model) or
    RecipeError (layers beyond the model, a rotation that does not fit).
    """
    source = open_source(recipe.input)
    wanted = targets.chosen(source.header, recipe.targets, recipe.layers)
    rates = {info.name: recipe.rate_of(info.name, info.shape) for info in wanted}
    if recipe.proc_sparse and not any(isinstance(rate, Proc) for rate in rates.values()):
        raise RecipeError(
            f"--proc-sparse: none of the chosen tensors is of --proc-target {recipe.proc_target}; "
            "choose others with --proc-target, --targets and --layers"
        )
    chosen = [info for info in wanted if rates[info.name] != "dense"]
    if not chosen:
        raise SourceModelError(
            f"{source.path}: has no matrix that is one of {','.join(recipe.targets)} in the layers asked for; "
            "choose others with --layers and --targets"
        )
    for info in chosen:
        if not can_dequantize(info.type):
            raise cannot_dequantize(source.path, info)
    for override in recipe.tensor_type:
        pattern, _ = parse_override(override)
        if not any(pattern.search(name) for name in source.tensors):
            told = "none of its tensors has such a name; `seeddelta inspect` lists them"
            # of this line, whoever plans: a dry run plans twice, and Python says it once for a place
            warnings.warn(f"{source.path}: --tensor-type {override}: {told}", RecipeWarning, stacklevel=1)
    gradient = None if recipe.gradient is None else open_gradient(recipe.gradient)
    fine: dict[str, FineTiles] = {}
    if recipe.target_bpw is not None or recipe.size is not None:
        fitted, fine = _fitted(recipe, source, {info.name: rates[info.name] for info in chosen}, gradient, counts)
        rates |= fitted
    recipes = {info.name: _own_recipe(recipe, info.name, rates[info.name]) for info in chosen}
    described = {
        info.name: describe(recipes[info.name], info.name, matrix_shape(info), info.type.name, experts_of(info))
        for info in chosen
    }
    described |= {name: with_fine(described[name], tiles) for name, tiles in fine.items()}
    covariance = None if recipe.hessian is None or not measured else open_covariance(recipe.hessian)
    if covariance is not None and not any(covariance.has(name) for name in described):
        raise ImatrixError(f"{covariance.path}: has no covariance for any of the tensors; make it with this model")
    imatrix = None if recipe.imatrix is None else read_imatrix(recipe.imatrix)
    if imatrix is not None:
        if not any(imatrix.covers(name) for name in described):
            raise ImatrixError(f"{recipe.imatrix}: has no entry for any of the tensors; make it with this model")
        for info in chosen:
            importance_of(recipe, imatrix, info)  # all of them are checked before hours of work
    uncalibrated = tuple(name for name in described if _lacks_calibration(name, imatrix, covariance))
    rest = rest_types(source.header, recipe.rest)
    if gradient is not None:
        if recipe.hessian is None:
            raise RecipeError("--gradient is of use with --hessian only; make that with seeddelta imatrix --hessian")
        if not any(gradient.has(name) for name in described):
            raise ImatrixError(f"{gradient.path}: has no gradients of any of the tensors; make it with this model")
    return Plan(source, imatrix, covariance, described, recipes, uncalibrated, gradient, rest, fine)


def _lacks_calibration(name: str, imatrix: Imatrix | None, covariance: Covariance | None) -> bool:
    """True for a matrix that others' calibration leaves out: rarely chosen experts, blocks that were not run."""
    if (imatrix is None and covariance is None) or names.role_of(name) in ("embd", "head"):
        return False  # embeddings are looked up, and llama-imatrix leaves the head out unless told otherwise
    return not (imatrix is not None and imatrix.covers(name)) and not (covariance is not None and covariance.has(name))


def _own_recipe(recipe: Recipe, name: str, rate: Rate) -> Recipe:
    changes: dict[str, Any]
    if isinstance(rate, Proc):
        changes = {"proc_sparse": True, "proc_fanout": rate.fanout, "layout": "row", "column_tensor": ()}
        return recipe.model_copy(update=changes)
    changes = {"bits": rate, "proc_sparse": False, "column_tensor": ()}
    changes["layout"] = "column" if recipe.is_column(name) else "row"
    if name == names.EMBEDDING:  # its rows are inputs, too, and lose more than the output gains: KL 0.0175, not 0.0139
        changes["column_power"] = 0.0
    return recipe.model_copy(update=changes)


def _fitted(
    recipe: Recipe,
    source: SourceModel,
    rates: dict[str, Rate],
    gradient: Gradient | None,
    counts: npt.NDArray[np.int64] | None,
) -> tuple[dict[str, Rate], dict[str, FineTiles]]:
    """Rates within --bpw or --size, by the prices of a gradient file or by the table, and of frequent tokens' rows."""

    def measured(name: str) -> float | None:
        return None if gradient is None else gradient.price(name)

    fixed = {
        name
        for name, rate in rates.items()
        if isinstance(rate, Proc) or overridden(name, recipe.tensor_type) is not None
    }
    counted = rates.keys() - fixed if recipe.target_of_preset else rates.keys()
    budget = budget_bytes(recipe, source, counted)
    budget += sum(bytes_at(recipe, source, name, rates[name]) for name in rates.keys() - counted)
    shapes = {name: source.tensors[name].shape for name in rates}
    prices = costs(rates, targets.computed_layers(source.header), shapes, measured)
    cached = cache(partial(bytes_at, recipe, source))
    single = best = fit_rates(rates, fixed, budget, prices, recipe.rates, cached)
    lost = loss(prices, best)
    fine: dict[str, FineTiles] = {}
    frequent = {
        name: found
        for name in rates
        if name not in fixed and can_be_fine(recipe, name)
        if (found := Frequent.of(name, shapes[name], counts)) is not None
    }
    for share in SHARES if frequent else ():
        parts = Parts({name: found.fine(share) for name, found in frequent.items()}, shapes, cached)
        tried = fit_rates(parts.rates(rates), fixed, budget, parts.prices(prices), recipe.rates, parts.bytes_at)
        if all(bits_of(tried, name) >= bits_of(single, name) - MOST_LOST for name in frequent):
            less = loss(parts.prices(prices), tried)
            if less < lost:
                lost, (best, fine) = less, parts.joined(tried)
    return best, fine


def can_be_fine(recipe: Recipe, name: str) -> bool:
    """True when some tiles of a matrix may have another rate: no residual, and no seed that is chosen for all rows."""
    alone = recipe.has_codes and recipe.residual_scheme == "none" and recipe.seed_search <= 1
    return alone and not recipe.is_column(name)


def bytes_at(recipe: Recipe, source: SourceModel, name: str, rate: Rate) -> int:
    """All bytes of a target tensor at a rate."""
    info = source.tensors[name]
    if rate == "dense":
        return info.nbytes
    known = _own_recipe(recipe, name, rate)
    return payload.payload_bytes(describe(known, name, matrix_shape(info), info.type.name, experts_of(info)))


def budget_bytes(recipe: Recipe, source: SourceModel, counted: Iterable[str]) -> int:
    """What --bpw or --size leaves for the target tensors."""
    if recipe.target_bpw is not None:
        return int(recipe.target_bpw * sum(prod(source.tensors[name].shape) for name in counted) / 8)
    assert recipe.size is not None
    chosen = set(counted)
    smaller = rest_types(source.header, recipe.rest)
    rest = sum(kept_tensor(source, name, smaller).nbytes for name in source.tensors if name not in chosen)
    return parse_size(recipe.size) - rest - _table_bytes(source, len(chosen))


def _table_bytes(source: SourceModel, converted: int) -> int:
    """The header: metadata, the table of tensors, their descriptions and the padding of the payloads."""
    return source.header.data_offset + _KEY_BYTES + _TABLE_BYTES * converted


def matrix_shape(info: TensorInfo) -> tuple[int, int]:
    n_out, n_in = info.shape[-2:]
    return n_out, n_in


def experts_of(info: TensorInfo) -> int | None:
    return info.shape[0] if len(info.shape) == 3 else None


def importance_of(recipe: Recipe, imatrix: Imatrix | None, info: TensorInfo) -> np.ndarray[Any, Any] | None:
    if imatrix is None or not imatrix.covers(info.name):
        return None
    power, eps = recipe.imatrix_power, recipe.imatrix_eps
    return imatrix.importance(info.name, info.shape[-1], experts=experts_of(info), power=power, eps=eps)
