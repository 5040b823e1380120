"""One matrix → description, payload and metrics.

Ŵ = row_scale · (base_scale · V·R + Δ). The base is fitted first, Δ holds the largest entries of what it leaves, and the
row scales are fitted last, by least squares, to what is stored (design.md; seeddelta.txt sections 2.1-2.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..errors import RecipeError
from ..gguf import schema
from ..gguf.reader import weight_arguments
from ..gguf.schema import (
    BlockResidual,
    CodebookResidual,
    CooResidual,
    FhtStructBase,
    NoBase,
    NoResidual,
    Norms,
    PrngBlockBase,
    TensorDescription,
    TrellisBase,
)
from .columns import column_factor, column_scale
from .feedback import BLOCK, LOOKAHEAD, Feedback, covariance_error, refitted_row_scale
from .rates import RATES
from .recipe import Recipe
from .report import Compute, Metrics
from .residual import Residual, needs_all_rows, residual_arrays
from .seeds import choose_seeds

Array = np.ndarray[Any, Any]
F32 = npt.NDArray[np.float32]
_CHUNK = 1 << 22  # weights handled at a time beside the matrix itself


@dataclass(frozen=True)
class EncodedTensor:
    """Result for one matrix. `arrays` maps suffix -> payload in its stored dtype, in file order."""

    description: TensorDescription
    arrays: dict[str, Array]
    metrics: Metrics
    method: Literal["plain", "weighted", "feedback"] = "plain"


def describe(
    recipe: Recipe, name: str, shape: tuple[int, int], source_type: str, experts: int | None = None
) -> TensorDescription:
    """Description of a matrix before it is encoded: everything but scale, multipliers and norms is final.

    Raises RecipeError for experts with a base or residual that they cannot have.
    """
    n_in = shape[1]
    step_bits, values = RATES[recipe.bits]
    base: PrngBlockBase | FhtStructBase | TrellisBase | NoBase = NoBase(kind="none")
    if recipe.base_kind == "trellis":
        base = TrellisBase(
            kind="trellis",
            scale=0.0,
            step_bits=step_bits,
            values_per_step=values,  # type: ignore[arg-type]
            state_bits=recipe.state_bits,
            multipliers=(1,) * values,
            rotation_block=recipe.rotation_for(n_in),
            column_scale=recipe.column_power > 0 and (recipe.hessian is not None or recipe.imatrix is not None),
        )
    elif recipe.base_kind == "prng_block":
        base = PrngBlockBase(
            kind="prng_block", scale=recipe.base_scale or 0.0, block=recipe.block, seed_per=recipe.seed_per
        )
    elif recipe.base_kind == "fht_struct":
        base = FhtStructBase(kind="fht_struct", scale=recipe.base_scale or 0.0)
    residual: Residual = NoResidual(scheme="none")
    entries = recipe.entries_for(n_in, shape[0])
    if recipe.residual_scheme == "coo":
        residual = CooResidual(scheme="coo", K=entries, vals=recipe.vals)
    elif recipe.residual_scheme == "block":
        residual = BlockResidual(scheme="block", block=32 if recipe.block == 32 else 64, kept=entries, vals=recipe.vals)
    elif recipe.residual_scheme == "codebook_resid":
        residual = CodebookResidual(scheme="codebook_resid", size=recipe.codebook_size, K=entries)
    if experts is not None and not schema.can_have_experts(base, residual):
        raise RecipeError(
            f"tensor {name!r} has {experts} experts, which need the base trellis or none, and no codebook; "
            "leave it out with --targets"
        )
    norms = Norms(w=0, w_hat=0, err=0, w_w=0, w_hat_w=0, err_w=0)
    return TensorDescription(
        name=name,
        shape=shape,
        experts=experts,
        source_type=source_type,
        base=base,
        residual=residual,
        row_scale=recipe.row_scale,
        norms=norms,
        unsafe=False,
    )


def encode_tensor(
    name: str,
    weights: F32,
    source_type: str,
    recipe: Recipe,
    importance: F32 | None = None,
    feedback: Feedback | None = None,
) -> EncodedTensor:
    """Encode float32[n_out, n_in] by the recipe; `importance` is float32[n_in] with the mean 1.

    Or float32[experts, n_out, n_in], with an importance of float32[experts, n_in] and no feedback; every expert is
    encoded by itself.
    The result depends on the arguments and on nothing else (not on `recipe.threads`). With `feedback` (trellis only)
    the error of the outputs is minimised.
    """
    if recipe.base_kind == "trellis" and recipe.seed_search > 1:  # other signs of the rotation
        single = recipe.model_copy(update={"seed_search": 0})
        trials = (
            encode_tensor(name, weights, source_type, seeded, importance)
            for seeded in (
                single.model_copy(update={"seed": (recipe.seed + trial) % (1 << 64)})
                for trial in range(recipe.seed_search)
            )
        )
        return min(trials, key=lambda encoded: encoded.metrics.rel_l2_w)  # the first one wins a tie
    if weights.ndim == 2:
        return _encode_matrix(name, weights, source_type, recipe, importance, feedback)
    describe(recipe, name, weights.shape[1:], source_type, len(weights))  # raises for what experts cannot have
    own = [None] * len(weights) if importance is None else importance
    return join_experts(
        [_encode_matrix(name, w, source_type, recipe, i, None) for w, i in zip(weights, own, strict=True)]
    )


def join_experts(encoded: Sequence[EncodedTensor]) -> EncodedTensor:
    """One tensor from the matrices of its experts, which were encoded by the same recipe."""
    first = encoded[0].description
    if isinstance(first.base, TrellisBase) and any(schema.COLUMN_SCALE in one.arrays for one in encoded):
        flat = {schema.COLUMN_SCALE: np.zeros(first.shape[1], np.int8)}  # of an expert whose columns matter alike
        encoded = [replace(one, arrays=flat | one.arrays) for one in encoded]
        first = first.model_copy(update={"base": first.base.model_copy(update={"column_scale": True})})
    norms = Norms(**{
        name: float(np.sqrt(sum(getattr(one.description.norms, name) ** 2 for one in encoded)))
        for name in Norms.model_fields
    })  # fmt: skip
    cross, cross_w = (
        sum(getattr(one.metrics, c) * getattr(one.description.norms, w) * getattr(one.description.norms, w_hat)
            for one in encoded)
        for c, w, w_hat in (("cos", "w", "w_hat"), ("cos_w", "w_w", "w_hat_w"))
    )  # fmt: skip
    arrays = {
        suffix: array if suffix == schema.BASE_SEED else np.concatenate([one.arrays[suffix] for one in encoded])
        for suffix, array in encoded[0].arrays.items()
    }
    description = first.model_copy(update={"experts": len(encoded), "norms": norms})
    arrays = {suffix: arrays[suffix] for suffix in schema.payload_layout(description)}
    return EncodedTensor(description, arrays, _metrics(norms, cross, cross_w), encoded[0].method)


def _encode_matrix(
    name: str,
    weights: F32,
    source_type: str,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | None,
) -> EncodedTensor:
    n_out, n_in = weights.shape
    description = describe(recipe, name, (n_out, n_in), source_type)
    base, seed, arrays = description.base, recipe.seed, {}
    if isinstance(base, TrellisBase):
        scales = None
        if feedback is not None:
            scales = feedback.column_scale
        elif importance is not None:
            scales = column_scale(importance, recipe.column_power)
        base, codes, row_scale = _encode_trellis(name, weights, base, scales, recipe, importance, feedback)
        arrays[schema.CODES] = codes
        if scales is not None:
            arrays[schema.COLUMN_SCALE] = scales
    elif isinstance(base, PrngBlockBase) and base.seed_per != "tensor":
        base, chosen, row_scale = choose_seeds(weights, base, recipe, importance)
        arrays |= chosen
    else:
        row_scale = _row_rms(weights)
        if isinstance(base, (PrngBlockBase, FhtStructBase)):
            seed = _search_seed(weights, row_scale, base, recipe, importance)
            if recipe.base_scale is None:
                scale = _fit_base(weights, row_scale, seed, base, importance, n_in)[0]
                base = base.model_copy(update={"scale": scale})
    description = description.model_copy(update={"base": base})
    arrays = {schema.BASE_SEED: np.array([seed], np.uint64).view("<i8"), **arrays}

    stored = _Stored(description, arrays)
    residual = not isinstance(description.residual, NoResidual)
    if schema.SEED_IDX in arrays:
        row_scale = stored.fit_row_scale(weights, importance)
    if residual:
        stored.add_residual(weights, row_scale, importance, recipe.threads)
    if residual or (description.row_scale == "f32" and feedback is None):
        row_scale = stored.fit_row_scale(weights, importance)
    arrays[schema.ROW_SCALE] = row_scale.astype("<f2" if description.row_scale == "f16" else "<f4")

    weight = stored.weight(arrays[schema.ROW_SCALE])
    norms, metrics = _measure(weights, weight, importance)
    if feedback is not None:
        metrics = metrics.model_copy(update={"rel_out": _output_error(weights, weight, feedback)})
    description = description.model_copy(update={"norms": norms})
    ordered = {suffix: arrays[suffix] for suffix in schema.payload_layout(description)}
    method: Any = "feedback" if feedback is not None else "plain" if importance is None else "weighted"
    return EncodedTensor(description, ordered, metrics, method)


def _encode_trellis(
    name: str,
    weights: F32,
    base: TrellisBase,
    scales: npt.NDArray[np.int8] | None,
    recipe: Recipe,
    importance: F32 | None,
    feedback: Feedback | None,
) -> tuple[TrellisBase, Array, F32]:
    """The completed base, its codes as stored and the row scales."""
    options: dict[str, Any] = dict(
        step_bits=base.step_bits,
        values_per_step=base.values_per_step,
        state_bits=base.state_bits,
        threads=recipe.threads,
    )
    factor = column_factor(scales)
    if feedback is None:
        codes, fitted, scale, multipliers = _core.trellis_encode(
            weights / factor,
            rotation_block=base.rotation_block,
            seed=recipe.seed,
            importance=None if importance is None else importance * factor**2,
            **options,
        )
        row_scale = np.asarray(fitted, np.float32)
    else:
        rows = _rotated(weights, feedback)
        codes, fitted, scale, multipliers = _core.trellis_encode(
            rows,
            importance=feedback.importance,
            feedback=feedback.matrix,
            feedback_block=BLOCK,
            lookahead=LOOKAHEAD,
            **options,
        )
        unit = _core.Weight(
            name, *rows.shape, base_kind=schema.BASE_KINDS["trellis"], base_scale=scale, step_bits=base.step_bits,
            values_per_step=base.values_per_step, multipliers=multipliers, codes=codes,
            row_scale=np.ones(len(rows), np.float32),
        ).dequantize()  # fmt: skip
        row_scale = refitted_row_scale(rows, unit, feedback.covariance)
    base = base.model_copy(
        update={
            "scale": float(scale),
            "multipliers": tuple(int(m) for m in multipliers),
            "column_scale": scales is not None,
        }
    )
    return base, np.asarray(codes).view("<i2"), row_scale


def _rotated(weights: F32, feedback: Feedback) -> F32:
    scaled = weights if feedback.column_scale is None else weights / column_factor(feedback.column_scale)
    if feedback.rotation_block < 2:
        return scaled
    return np.asarray(_core.rotate(scaled, feedback.rotation_block, feedback.seed), np.float32)


def _output_error(weights: F32, stored: _core.Weight, feedback: Feedback) -> float:
    return covariance_error(_rotated(weights, feedback), _rotated(stored.dequantize(), feedback), feedback.covariance)


def compute_estimate(description: TensorDescription, bytes_before: int) -> Compute:
    """Operations and bytes for one token, and one expert where there are several.

    Decoding a trellis value: a product, two look-ups, an addition; a prng_block value: 1/8 of a SplitMix64 output of
    about 8 operations, mask and shift.
    """
    n_out, n_in = description.shape
    base, residual = description.base, description.residual
    gains = isinstance(base, PrngBlockBase) and base.seed_per == "block"
    decode_ops = 4 if isinstance(base, TrellisBase) or gains else 3 if isinstance(base, PrngBlockBase) else 0
    rotation = description.rotation_block
    rotation_ops = n_in * (2 + rotation.bit_length() - 1) if rotation else 0
    if isinstance(base, FhtStructBase):  # two transforms, signs and G for each block of rows
        d = max(64, 1 << (n_in - 1).bit_length())
        rotation_ops = -(-n_out // d) * 2 * d * d.bit_length()
    float_macs = 0
    if isinstance(residual, CooResidual):
        float_macs = n_out * residual.K
    elif isinstance(residual, BlockResidual):
        float_macs = n_out * residual.kept * residual.block
    elif isinstance(residual, CodebookResidual):
        float_macs = residual.size * n_in + n_out * residual.K
    return Compute(
        integer_macs=n_out * n_in if decode_ops else 0,
        float_macs=float_macs,
        decode_ops=decode_ops * n_out * n_in,
        rotation_ops=rotation_ops,
        bytes_read=schema.payload_bytes(description) // (description.experts or 1),
        dense_macs=n_out * n_in,
        dense_bytes_read=bytes_before // (description.experts or 1),
    )


class _Stored:
    """Payload under construction, decoded through the core so that fits see exactly what will be stored."""

    def __init__(self, description: TensorDescription, arrays: dict[str, Array]) -> None:
        self.description = description
        self.arrays = arrays

    def weight(self, row_scale: Array, *, residual: bool = True) -> _core.Weight:
        arrays = {
            s: a.view(a.dtype.str.replace("i", "u")) if s in schema.UNSIGNED else a for s, a in self.arrays.items()
        }
        arrays[schema.ROW_SCALE] = row_scale
        arguments = weight_arguments(self.description, arrays)
        if not residual:
            arguments = {key: value for key, value in arguments.items() if key not in schema.RESIDUALS}
        return _core.Weight(self.description.name, *self.description.shape, **arguments)

    def add_residual(self, weights: F32, row_scale: F32, importance: F32 | None, threads: int) -> None:
        """The residual of W / row_scale − base, by the (weighted) error that it removes."""
        residual = self.description.residual
        n_out, n_in = weights.shape
        ones = np.ones(n_out, np.float32)
        inverse = np.divide(1, row_scale, out=np.zeros_like(row_scale), where=row_scale != 0)
        base = None if isinstance(self.description.base, NoBase) else self.weight(ones, residual=False)
        parts = []
        for begin, end in [(0, n_out)] if needs_all_rows(residual) else _row_ranges(n_out, n_in):
            delta = weights[begin:end] * inverse[begin:end, None]
            if base is not None:
                delta -= base.dequantize(begin, end)
            delta[row_scale[begin:end] == 0] = 0
            parts.append(residual_arrays(delta, row_scale[begin:end], residual, importance, threads))
        self.arrays.update({suffix: np.concatenate([part[suffix] for part in parts]) for suffix in parts[0]})

    def fit_row_scale(self, weights: F32, importance: F32 | None) -> F32:
        """Row scales that minimise the (weighted) squared error of what is stored."""
        n_out, n_in = weights.shape
        unit = self.weight(np.ones(n_out, np.float32))
        fitted = np.zeros(n_out, np.float32)
        for begin, end in _row_ranges(n_out, n_in):
            stored = unit.dequantize(begin, end)
            weighted = stored if importance is None else stored * importance
            cross = np.einsum("oi,oi->o", weights[begin:end], weighted, dtype=np.float64)
            square = np.einsum("oi,oi->o", stored, weighted, dtype=np.float64)
            fitted[begin:end] = np.divide(cross, square, out=np.zeros_like(cross), where=square > 0)
        return fitted


def _row_ranges(n_out: int, n_in: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _CHUNK // n_in)
    for begin in range(0, n_out, rows):
        yield begin, min(begin + rows, n_out)


def _row_rms(weights: F32) -> F32:
    """Root mean square of each row, float32[n_out]."""
    square = np.einsum("oi,oi->o", weights, weights, dtype=np.float64)
    return np.asarray(np.sqrt(square / weights.shape[1]), dtype=np.float32)


def _fit_base(
    weights: F32,
    row_scale: F32,
    seed: int,
    base: PrngBlockBase | FhtStructBase,
    importance: F32 | None,
    columns: int,
) -> tuple[float, float]:
    """Least-squares scale of a base without codes over the first columns, and the squared error that it removes."""
    n_out, n_in = weights.shape
    weight = np.ones(columns, np.float32) if importance is None else importance[:columns]
    cross = square = 0.0
    for begin, end in _row_ranges(n_out, n_in):
        if isinstance(base, PrngBlockBase):
            values = _core.prng_block_values(seed, begin, end, columns, base.block).astype(np.float32)
        else:
            values = _core.fht_struct_values(seed, begin, end, n_in)[:, :columns]
        scale = row_scale[begin:end].astype(np.float64)
        rows = np.einsum("oi,oi,i->o", weights[begin:end, :columns], values, weight, dtype=np.float64)
        cross += float((rows * scale).sum())  # not np.dot: BLAS may split sums by threads
        square += float((np.einsum("oi,oi,i->o", values, values, weight, dtype=np.float64) * scale**2).sum())
    # the error is that of W itself: sum of (W − row_scale·s·v)²
    return (cross / square, cross * cross / square) if square > 0 else (0.0, 0.0)


def _search_seed(
    weights: F32, row_scale: F32, base: PrngBlockBase | FhtStructBase, recipe: Recipe, importance: F32 | None
) -> int:
    """The seed of `seed_search` trials whose base removes most of the (weighted) error; the first one wins a tie."""
    n_in = weights.shape[1]
    columns = min(recipe.eval_cols or n_in, n_in)
    best, gain = recipe.seed, -1.0
    for trial in range(recipe.seed_search):
        seed = (recipe.seed + trial) % (1 << 64)
        removed = _fit_base(weights, row_scale, seed, base, importance, columns)[1]
        if removed > gain:
            best, gain = seed, removed
    return best


def _measure(weights: F32, stored: _core.Weight, importance: F32 | None) -> tuple[Norms, Metrics]:
    """Norms and metrics of the weights as they are stored, in double precision."""
    sums = np.zeros((2, 3))  # plain, weighted: ‖W‖², ‖Ŵ‖², ⟨W, Ŵ⟩
    errors = np.zeros(2)
    n_out, n_in = weights.shape
    for begin, end in _row_ranges(n_out, n_in):
        w = weights[begin:end]
        w_hat = stored.dequantize(begin, end)
        error = w - w_hat
        for kind, weight in enumerate((None, importance)):
            if weight is None and kind:
                continue
            for at, (a, b) in enumerate(((w, w), (w_hat, w_hat), (w, w_hat))):
                sums[kind, at] += _inner(a, b, weight)
            errors[kind] += _inner(error, error, weight)
    if importance is None:
        sums[1], errors[1] = sums[0], errors[0]
    (w, w_hat), err = np.sqrt(sums[:, :2]).T, np.sqrt(errors)
    norms = Norms(w=w[0], w_hat=w_hat[0], err=err[0], w_w=w[1], w_hat_w=w_hat[1], err_w=err[1])
    return norms, _metrics(norms, float(sums[0, 2]), float(sums[1, 2]))


def _metrics(norms: Norms, cross: float, cross_w: float) -> Metrics:
    """Metrics from the norms and ⟨W, Ŵ⟩, plain and weighted."""
    w, w_hat, err = (np.array(pair) for pair in (
        (norms.w, norms.w_w), (norms.w_hat, norms.w_hat_w), (norms.err, norms.err_w),
    ))  # fmt: skip
    ratio = np.divide(w_hat, w, out=np.ones(2), where=w > 0)
    relative = np.divide(err, w, out=np.where(err > 0, 1.0, 0.0), where=w > 0)
    cosine = np.divide([cross, cross_w], w * w_hat, out=np.where(err > 0, 0.0, 1.0), where=w * w_hat > 0)
    return Metrics(
        rel_l2=relative[0],
        cos=cosine[0],
        norm_ratio=ratio[0],
        rel_l2_w=relative[1],
        cos_w=cosine[1],
        norm_ratio_w=ratio[1],
    )


def _inner(a: F32, b: F32, weight: F32 | None) -> float:
    columns = np.einsum("oi,oi->i", a, b, dtype=np.float64)
    return float(columns.sum() if weight is None else (columns * weight).sum())
