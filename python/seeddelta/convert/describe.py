"""What a recipe means for one matrix before it is encoded: its description, and what a token will cost."""

from __future__ import annotations

import numpy as np

from seeddelta import _core

from ..errors import RecipeError
from ..gguf import names, payload, schema
from ..gguf.schema import (
    LanesBase,
    NoBase,
    NoResidual,
    Norms,
    ProcSparseResidual,
    TensorDescription,
)
from ..kinds import BASE_OF, RESIDUAL_OF
from ..kinds.kind import Base, Residual
from ..kinds.prng_block import PrngBlockBase
from .frequent import FineTiles
from .rates import LEAST_COLUMN_RATE, lane_code
from .recipe import Recipe
from .report import Compute


def describe(
    recipe: Recipe, name: str, shape: tuple[int, int], source_type: str, experts: int | None = None
) -> TensorDescription:
    """Description of a matrix before it is encoded: all but scale, trims and norms is final.

    Raises RecipeError for experts with a base or residual that they cannot have, and for a column layout of too few
    bits.
    """
    column = experts is None and recipe.is_column(name)
    base, residual = _base(recipe, name, shape, column), _residual(recipe, name, shape)
    if experts is not None and not schema.can_have_experts(base, residual):
        raise RecipeError(
            f"tensor {name!r} has {experts} experts, which need the base lanes or none, and neither codebook nor "
            "proc-sparse; "
            "leave it out with --targets"
        )
    norms = Norms(w=0, w_hat=0, err=0, w_w=0, w_hat_w=0, err_w=0)
    return TensorDescription(
        name=name,
        shape=shape,
        experts=experts,
        layout="column" if column else "row",
        source_type=source_type,
        base=base,
        residual=residual,
        row_scale=recipe.row_scale,
        norms=norms,
        unsafe=False,
    )


def with_fine(description: TensorDescription, tiles: FineTiles) -> TensorDescription:
    """Of a matrix of byte lanes with tiles of another rate."""
    assert isinstance(description.base, LanesBase)
    fine = {"fine_code": lane_code(tiles.bits).number, "fine_tiles": tiles.count}
    return description.model_copy(update={"base": description.base.model_copy(update=fine)})


def _base(recipe: Recipe, name: str, shape: tuple[int, int], column: bool) -> Base:
    n_in = shape[1]
    if recipe.proc_sparse:
        return proc_base(recipe)
    if recipe.has_codes:
        if column and recipe.bits < LEAST_COLUMN_RATE:
            raise RecipeError(
                f"layout column needs at least {LEAST_COLUMN_RATE} bits, and {name!r} has {recipe.bits:g}; "
                "give it more, or --layout row"
            )
        code = lane_code(recipe.bits, column=column)
        return LanesBase(
            kind="lanes",
            scale=1 / code.deviation,
            code=code.number,
            rotation_block=recipe.rotation_for(shape[0] if column else n_in),
            column_scale=not column
            and (
                (recipe.hessian is not None and recipe.covariance_power > 0)
                or (recipe.imatrix is not None and (recipe.column_power or 0.0) > 0)
            ),
        )
    kind = BASE_OF.get(recipe.base_kind)
    return NoBase(kind="none") if kind is None else kind.describe(recipe)


def proc_base(recipe: Recipe) -> Base:
    """Of the proc-sparse tensors of a recipe."""
    if recipe.proc_base_scale <= 0:
        return NoBase(kind="none")
    scale = float(np.float32(recipe.proc_base_scale / _core.PRNG_BLOCK_STD))
    return PrngBlockBase(kind="prng_block", scale=scale, block=recipe.proc_block)


def _residual(recipe: Recipe, name: str, shape: tuple[int, int]) -> Residual:
    entries = recipe.entries_for(shape[1], shape[0])
    if recipe.proc_sparse:
        kept = _kept_blocks(recipe, name, *shape)
        return ProcSparseResidual(scheme="proc_sparse", block=recipe.proc_block, kept=kept)
    kind = RESIDUAL_OF.get(recipe.residual_scheme)
    return NoResidual(scheme="none") if kind is None else kind.describe(recipe, entries)


def head_parts(recipe: Recipe, name: str, n_out: int, n_in: int) -> tuple[int, int]:
    """Heads among the rows, and among the columns, that choose their proc-sparse blocks together; 1 for no heads.

    Raises RecipeError when --proc-head does not divide the matrix.
    """
    place = names.split_name(name)
    if not recipe.proc_head or place is None or not names.in_group(place[1], "attn"):
        return 1, 1
    by_columns = place[1] == "attn_output"
    size, what = (n_in, "columns") if by_columns else (n_out, "rows")
    if size % recipe.proc_head or (by_columns and recipe.proc_head % recipe.proc_block):
        raise RecipeError(
            f"--proc-head {recipe.proc_head} does not divide the {size} {what} of {name!r} "
            f"into whole blocks of {recipe.proc_block}"
        )
    heads = size // recipe.proc_head
    return (1, heads) if by_columns else (heads, 1)


def _kept_blocks(recipe: Recipe, name: str, n_out: int, n_in: int) -> int:
    heads = head_parts(recipe, name, n_out, n_in)[1]
    blocks = -(-n_in // recipe.proc_block) // heads
    fanout = recipe.proc_fanout * (blocks if recipe.proc_fanout < 1 else 1)
    return heads * min(max(1, round(fanout)), blocks)


def compute_estimate(description: TensorDescription, bytes_before: int) -> Compute:
    """Operations and bytes for one token, and one expert where there are several."""
    n_out, n_in = description.shape
    base, residual = description.base, description.residual
    if isinstance(residual, ProcSparseResidual):
        weights = n_out * residual.kept * residual.block
        hashed = not isinstance(base, NoBase)
        return Compute(
            integer_macs=weights * (2 if hashed else 1),
            float_macs=0,
            decode_ops=3 * weights if hashed else 0,
            rotation_ops=0,
            bytes_read=payload.payload_bytes(description),
            dense_macs=n_out * n_in,
            dense_bytes_read=bytes_before,
        )
    decode_ops = base.decode_ops()
    rotation = description.rotation_block
    rotation_ops = (n_out if description.is_column else n_in) * (2 + rotation.bit_length() - 1) if rotation else 0
    return Compute(
        integer_macs=n_out * n_in if decode_ops else 0,
        float_macs=residual.float_macs(n_out, n_in),
        decode_ops=decode_ops * n_out * n_in,
        rotation_ops=rotation_ops + base.transform_ops(n_out, n_in),
        bytes_read=payload.payload_bytes(description) // (description.experts or 1),
        dense_macs=n_out * n_in,
        dense_bytes_read=bytes_before // (description.experts or 1),
    )
