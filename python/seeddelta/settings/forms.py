"""The forms that a base and a residual can have, and all settings of a build.

`Recipe` (convert/recipe.py) has the settings side by side; `base` and `residual` are the same ones as one of several
kinds each, which has no other settings than its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, create_model

from .. import kinds
from .._settings import Flag, Settings
from ..kinds.kind import one_of
from ..kinds.options import BlockOptions, EntryOptions, Group, ScaledOptions, SeedOptions, ValueOptions
from .recipe import EncoderOptions, FileOptions, LayoutOptions, MeasuredOptions, ProcOptions, RunningOptions

_BASES = (*kinds.BASE_OF, "lanes", "none")
_SCHEMES = (*kinds.RESIDUAL_OF, "none")
if TYPE_CHECKING:
    BaseName = str
    SchemeName = str
else:
    BaseName = Literal[_BASES]
    SchemeName = Literal[_SCHEMES]


class KindOptions(Group):
    """Which base, and which residual."""

    base_kind: Annotated[BaseName, Flag(shown=True, panel="Base")] = Field(
        default="lanes",
        description="Base W0. lanes: codes in byte lanes, for all that is not an experiment.",
    )
    scheme: Annotated[
        SchemeName | None,
        Flag(
            shown=True,
            old=("--seeddelta-scheme",),
            panel="Residual",
            metavar="|".join(name.removesuffix("_resid") for name in _SCHEMES),
        ),
    ] = Field(default=None, description="Residual Δ. Default: none for lanes, coo for the other bases.")


class Lanes(EncoderOptions, SeedOptions):
    """Codes in byte lanes, with trained tables."""

    kind: Literal["lanes"] = "lanes"


class NoBase(Group):
    """The residual is the weight."""

    kind: Literal["none"] = "none"


class NoResidual(Group):
    """The base is the weight."""

    scheme: Literal["none"] = "none"


_BASE_FORMS: tuple[type[Group], ...] = (Lanes, *(kind.options for kind in kinds.BASES), NoBase)
_RESIDUAL_FORMS: tuple[type[Group], ...] = (*(kind.options for kind in kinds.RESIDUALS), NoResidual)
if TYPE_CHECKING:
    Base = Group
    Residual = Group

    class _KindSettings(ValueOptions, EntryOptions, BlockOptions, ScaledOptions, EncoderOptions, SeedOptions): ...
else:
    Base = Annotated[one_of(_BASE_FORMS), Field(discriminator="kind")]
    Residual = Annotated[one_of(_RESIDUAL_FORMS), Field(discriminator="scheme")]
    _of_bases = tuple(own for kind in kinds.BASES for own in kind.own)
    _of_residuals = tuple(own for kind in kinds.RESIDUALS for own in kind.own)
    _shared = (BlockOptions, ScaledOptions, EncoderOptions, SeedOptions)
    # in the order of the help, the last ones first
    _KindSettings = type("_KindSettings", (*_of_residuals, ValueOptions, EntryOptions, *_of_bases, *_shared), {})


class RecipeSettings(
    RunningOptions, MeasuredOptions, ProcOptions, LayoutOptions, _KindSettings, KindOptions, FileOptions
):
    """All settings of a build."""

    forms = ("base", "residual")


_IN_FORMS = {name for form in (*_BASE_FORMS, *_RESIDUAL_FORMS) for name in form.model_fields}


class RecipeForm(Settings):
    """A build with its base and residual as one of several kinds each: what its JSON schema is of."""

    base: Base = Field(default_factory=Lanes, description="Base W0: what is made from the seed.")
    residual: Residual | None = Field(
        default=None, description="Residual Δ. Default: none for lanes, coo for the other bases."
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
