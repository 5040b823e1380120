"""Settings of bases and residuals that several kinds have."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .._settings import Flag, Settings, Whole
from ..errors import RecipeError, SeedDeltaError


class Group(Settings):
    error: ClassVar[type[SeedDeltaError]] = RecipeError


def _number(given: Any) -> Any:
    """A whole number from text, in any base that Python writes (0x10)."""
    try:
        return int(given, 0) if isinstance(given, str) else given
    except ValueError:
        return given


_Seed = BeforeValidator(_number)


class SeedOptions(Group):
    """A base with a seed."""

    seed: Annotated[int, _Seed, Flag(metavar="N", panel="Base")] = Field(
        default=1, ge=0, lt=1 << 64, description="Seed of the base, and of the signs of the rotation."
    )
    seed_search: Annotated[int, Flag(panel="Base")] = Field(
        default=0,
        ge=0,
        description="Seeds tried for each tensor (or --seed-per), from --seed on; the one of the lowest error is kept "
        "(byte lanes are encoded that often, and not with --hessian, whose diagonal weighs the columns elsewhere).",
    )


class ScaledOptions(Group):
    """A base whose scale is fitted."""

    base_scale: Annotated[float | None, Flag(metavar="X", panel="Base")] = Field(
        default=None, description="Scale of a prng_block or fht_struct base. Default: fitted to each tensor."
    )


class BlockOptions(Group):
    """Blocks of columns."""

    block: Annotated[Literal[8, 16, 32, 64], Whole, Flag(panel="Base")] = Field(
        default=64,
        description="Columns of a block of the prng_block base (and of the block scheme: 32 or 64).",
    )


class EntryOptions(Group):
    """What a row of the residual keeps."""

    K: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)] | None, Flag(names=("--K",), metavar="N|auto", panel="Residual")
    ] = Field(
        default=None,
        description="What a row keeps: entries (coo, default 32), blocks (block, default 1) or atoms (codebook_resid, "
        "default 8); auto: as many as fit in --bits (not with lanes).",
    )


class ValueOptions(Group):
    """Values of the residual."""

    vals: Annotated[Literal["fp16", "int8"], Flag(old=("--seeddelta-vals",), panel="Residual")] = Field(
        default="fp16", description="Type of the residual's values."
    )
