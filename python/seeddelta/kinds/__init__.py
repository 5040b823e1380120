"""Bases and residuals that measurements advise against (docs/internals/quality.md), a file each.

It has the description and the encoding of its kind; the format and the encoder take them from the two lists. Kernels
are in cpp/src/kinds and cpp/src/simd.
"""

from __future__ import annotations

from .block import BlockResidual
from .codebook_resid import CodebookResidual
from .coo import CooResidual
from .fht_struct import FhtStructBase
from .kind import BaseKind, ResidualKind
from .prng_block import PrngBlockBase

BASES: tuple[type[BaseKind], ...] = (
    PrngBlockBase,
    FhtStructBase,
)
RESIDUALS: tuple[type[ResidualKind], ...] = (
    CooResidual,
    BlockResidual,
    CodebookResidual,
)
BASE_OF: dict[str, type[BaseKind]] = {kind.name(): kind for kind in BASES}
RESIDUAL_OF: dict[str, type[ResidualKind]] = {kind.name(): kind for kind in RESIDUALS}
