"""Settings of bases and residuals, those of all kinds side by side."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ..errors import RecipeError, SeedDeltaError
from .tree import Flag, Settings, Whole


class Group(Settings):
    error: ClassVar[type[SeedDeltaError]] = RecipeError


def _number(given: Any) -> Any:
    """A whole number from text, in any base that Python writes (0x10)."""
    try:
        return int(given, 0) if isinstance(given, str) else given
    except ValueError:
        return given


_Seed = BeforeValidator(_number)


class BaseOptions(Group):
    """Which base, and how it is made."""

    base_kind: Annotated[Literal["lanes", "prng_block", "fht_struct", "none"], Flag(panel="Base")] = Field(
        default="lanes",
        description="Base W0. lanes: codes in byte lanes, for all that is not an experiment.",
    )
    seed: Annotated[int, _Seed, Flag(metavar="N", panel="Base")] = Field(
        default=1, ge=0, lt=1 << 64, description="Seed of the base, and of the signs of the rotation."
    )
    seed_search: Annotated[int, Flag(panel="Base")] = Field(
        default=0,
        ge=0,
        description="Seeds tried for each tensor (or --seed-per), from --seed on; the one of the lowest error is kept "
        "(byte lanes are encoded that often, and not with --hessian, whose diagonal weighs the columns elsewhere).",
    )
    base_scale: Annotated[float | None, Flag(metavar="X", panel="Base")] = Field(
        default=None, description="Scale of a prng_block or fht_struct base. Default: fitted to each tensor."
    )
    block: Annotated[Literal[8, 16, 32, 64], Whole, Flag(panel="Base")] = Field(
        default=64,
        description="Columns of a block of the prng_block base (and of the block scheme: 32 or 64).",
    )
    seed_per: Annotated[Literal["tensor", "row", "block"], Flag(panel="Base")] = Field(
        default="tensor",
        description="What the seed search chooses a seed for (prng_block): row takes 2 bytes a row, block 3 bytes a "
        "block of --block columns and gives each block a gain; both need --seed-search 2 to 65536.",
    )


class ResidualOptions(Group):
    """Which residual, and what it keeps."""

    scheme: Annotated[
        Literal["coo", "block", "codebook_resid", "none"] | None,
        Flag(old=("--seeddelta-scheme",), panel="Residual", metavar="coo|block|codebook|none"),
    ] = Field(default=None, description="Residual Δ. Default: none for lanes, coo for the other bases.")
    K: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)] | None, Flag(names=("--K",), metavar="N|auto", panel="Residual")
    ] = Field(
        default=None,
        description="What a row keeps: entries (coo, default 32), blocks (block, default 1) or atoms (codebook_resid, "
        "default 8); auto: as many as fit in --bits (not with lanes).",
    )
    vals: Annotated[Literal["fp16", "int8"], Flag(old=("--seeddelta-vals",), panel="Residual")] = Field(
        default="fp16", description="Type of the residual's values."
    )
    codebook_size: Annotated[int, Flag(panel="Residual")] = Field(
        default=256, ge=1, le=65536, description="Atoms of the dictionary of codebook_resid, one for each tensor."
    )
