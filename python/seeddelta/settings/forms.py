"""The forms that a base and a residual can have, and all settings of a build.

`Recipe` (convert/recipe.py) has the settings side by side; `base` and `residual` are the same ones as one of several
kinds each, which has no other settings than its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, create_model

from .base import Flag, Settings
from .recipe import (
    BlockOptions,
    CodebookOptions,
    EntryOptions,
    FileOptions,
    Group,
    LayoutOptions,
    MeasuredOptions,
    PrngOptions,
    ProcOptions,
    RunningOptions,
    ScaledOptions,
    SeedOptions,
    TrellisOptions,
    ValueOptions,
)


class KindOptions(Group):
    """Which base, and which residual."""

    base_kind: Annotated[
        Literal["prng_block", "fht_struct", "trellis", "lanes", "none"], Flag(shown=True, panel="Base")
    ] = Field(
        default="lanes",
        description="Base W0. lanes: the trellis in byte lanes for the rates that it has (2, 3 and 4 bits, in rows), "
        "and the hashed trellis elsewhere.",
    )
    scheme: Annotated[
        Literal["coo", "block", "codebook_resid", "none"] | None,
        Flag(shown=True, old=("--seeddelta-scheme",), metavar="coo|block|codebook|none", panel="Residual"),
    ] = Field(default=None, description="Residual Δ. Default: none for the trellis, coo for the other bases.")


class Trellis(TrellisOptions, SeedOptions):
    """Weights of a seeded hash, walked by the codes of the best path."""

    kind: Literal["trellis"] = "trellis"


class Lanes(TrellisOptions, SeedOptions):
    """The trellis in byte lanes, for the rates that it has."""

    kind: Literal["lanes"] = "lanes"


class PrngBlock(PrngOptions, BlockOptions, ScaledOptions, SeedOptions):
    """Random weights, a block of columns after the other."""

    kind: Literal["prng_block"] = "prng_block"


class FhtStruct(ScaledOptions, SeedOptions):
    """Random signs between fast Hadamard transforms."""

    kind: Literal["fht_struct"] = "fht_struct"


class NoBase(Group):
    """The residual is the weight."""

    kind: Literal["none"] = "none"


class Coo(EntryOptions, ValueOptions):
    """Single entries of a row."""

    scheme: Literal["coo"] = "coo"


class Blocks(EntryOptions, ValueOptions, BlockOptions):
    """Blocks of a row."""

    scheme: Literal["block"] = "block"


class Codebook(EntryOptions, CodebookOptions):
    """Atoms of a dictionary."""

    scheme: Literal["codebook_resid"] = "codebook_resid"


class NoResidual(Group):
    """The base is the weight."""

    scheme: Literal["none"] = "none"


Base = Annotated[Trellis | Lanes | PrngBlock | FhtStruct | NoBase, Field(discriminator="kind")]
Residual = Annotated[Coo | Blocks | Codebook | NoResidual, Field(discriminator="scheme")]


class RecipeSettings(
    RunningOptions, MeasuredOptions, ProcOptions, LayoutOptions, CodebookOptions, ValueOptions, EntryOptions,
    PrngOptions, BlockOptions, ScaledOptions, TrellisOptions, SeedOptions, KindOptions, FileOptions,
):  # fmt: skip
    """All settings of a build."""

    forms = ("base", "residual")


_IN_FORMS = {
    name for form in (Trellis, Lanes, PrngBlock, FhtStruct, Coo, Blocks, Codebook) for name in form.model_fields
}


class RecipeForm(Settings):
    """A build with its base and residual as one of several kinds each: what its JSON schema is of."""

    base: Base = Field(default_factory=Lanes, description="Base W0: what is made from the seed.")
    residual: Residual | None = Field(
        default=None, description="Residual Δ. Default: none for the trellis, coo for the other bases."
    )


def recipe_form(tree: type[RecipeSettings]) -> type[Settings]:
    """The settings of a tree that has those of a build, with `base` and `residual` in place of what is in them."""
    apart = {
        name: (field.annotation, field)
        for name, field in tree.model_fields.items()
        if name not in _IN_FORMS | {"base_kind", "scheme"}
    }
    made: type[Settings] = create_model(tree.__name__, __base__=RecipeForm, **apart)  # type: ignore[call-overload]
    return made
