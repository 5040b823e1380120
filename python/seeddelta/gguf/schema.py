"""Keys, payload suffixes and tensor descriptions of a SeedΔ file (docs/reference/format.md).

The arrays in which a file has the descriptions are in descriptions.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .. import kinds
from ..kinds.kind import FROZEN, Arrays, Base, Layout, Residual, ScaledBase, check_kept, one_of
from ..kinds.prng_block import PrngBlockBase

if TYPE_CHECKING:
    from .. import _core

VERSION = 1
PREFIX = "seeddelta."
KEY_ENABLED = "seeddelta.enabled"
KEY_VERSION = "seeddelta.version"
KEY_SCHEME = "seeddelta.scheme"
KEY_BASE_KIND = "seeddelta.base.kind"
KEY_BASE_SEED = "seeddelta.base.seed"
KEY_BASE_SCALE = "seeddelta.base.scale"
KEY_RESID_K = "seeddelta.resid.K"
KEY_RESID_BLOCK = "seeddelta.resid.block"
KEY_ROW_SCALE = "seeddelta.row_scale"
KEY_ROW_SCALE_TYPE = "seeddelta.row_scale.type"
KEY_GAP = "seeddelta.gap"
KEY_SOURCE_FILE = "seeddelta.source.file"
KEY_SOURCE_SHA256 = "seeddelta.source.sha256"
KEY_IMATRIX_FILE = "seeddelta.imatrix.file"
KEY_IMATRIX_SHA256 = "seeddelta.imatrix.sha256"
KEY_IMATRIX_POWER = "seeddelta.imatrix.power"
KEY_IMATRIX_EPS = "seeddelta.imatrix.eps"
KEY_HESSIAN_FILE = "seeddelta.hessian.file"
KEY_HESSIAN_SHA256 = "seeddelta.hessian.sha256"
KEY_HESSIAN_DAMP = "seeddelta.hessian.damp"
KEY_GRADIENT_FILE = "seeddelta.gradient.file"
KEY_GRADIENT_SHA256 = "seeddelta.gradient.sha256"
KEY_GRADIENT_DAMP = "seeddelta.gradient.damp"
KEY_CALIBRATION_TEXT = "seeddelta.calibration.text"
KEY_CALIBRATION_SHA256 = "seeddelta.calibration.text_sha256"
KEY_CALIBRATION_CHUNKS = "seeddelta.calibration.chunks"
KEY_CALIBRATION_MODE = "seeddelta.calibration.mode"
KEY_CALIBRATION_CTX = "seeddelta.calibration.ctx"
KEY_RECIPE = "seeddelta.recipe"
KEY_GENERATOR = "seeddelta.generator"
KEY_CRC32 = "seeddelta.crc32"
TENSORS = "seeddelta.tensors."  # begins the keys of the table of converted tensors

BASE_SEED, ROW_SCALE, CODES = "base_seed", "row_scale", "codes"
FINE_CODES, FINE_MAP = "fine_codes", "fine_map"
COLUMN_SCALE = "column_scale"
P_MAP, P_VAL, P_SCALE = "p_map", "p_val", "p_scale"

LANES = 16  # rows of a tile of codes
LANE_BYTES = 64  # of a line of base lanes: four streams of 16 rows
COLUMN_SLICE = 64  # outputs that column layout is padded to
COLUMN_VALUES = 16  # of a stream of base lanes in column layout


class LanesBase(ScaledBase):
    """Base of integers from streams of 4-bit codes, four a row; `code` is the number of its pattern and tables.

    `fine_tiles` of the tiles of 16 rows have the code with the number `fine_code` instead.
    """

    number = 2
    kind: Literal["lanes"]
    code: int = Field(ge=0)
    fine_code: int = Field(default=0, ge=0)
    fine_tiles: int = Field(default=0, ge=0)
    rotation_block: int = Field(ge=0)
    column_scale: bool = False

    @field_validator("code", "fine_code")
    @classmethod
    def _known(cls, code: int, info: ValidationInfo) -> int:
        if code not in lane_codes() and (code or info.field_name == "code"):
            raise PydanticCustomError(
                "unknown_lane_code", "there is no code of byte lanes with the number {n}", {"n": code}
            )
        return code

    def arguments(self) -> dict[str, Any]:
        fine = {"fine_code": self.fine_code} if self.fine_tiles else {}
        return super().arguments() | {"lane_code": self.code} | fine

    def decode_ops(self) -> int:
        return 4

    @property
    def bits(self) -> float:
        """Bits of the codes for a weight, without padding; those of the fine tiles are `fine_bits`."""
        return lane_code(self.code).bits

    @property
    def fine_bits(self) -> float | None:
        return lane_code(self.fine_code).bits if self.fine_tiles else None


def column_strips(n_out: int) -> list[int]:
    """Streams of each strip of outputs of base lanes in column layout: 16 for 256 outputs, 4 for 64 of the rest.

    The rest is in the middle where it is whole, else at the end.
    """
    wide, rest = divmod(n_out, 16 * COLUMN_VALUES)
    before = wide if n_out % COLUMN_SLICE else (wide + 1) // 2
    return [16] * before + [4] * -(-rest // COLUMN_SLICE) + [16] * (wide - before)


@cache
def lane_codes() -> dict[int, _core.LaneCode]:
    """All codes of byte lanes, by number."""
    from .. import _core

    return {code.number: code for code in _core.lane_codes()}


def lane_code(number: int) -> _core.LaneCode:
    """The code of byte lanes with this number in files."""
    return lane_codes()[number]


class NoBase(Base):
    """No base: the residual is everything."""

    number = 255
    kind: Literal["none"]


class ProcSparseResidual(Residual):
    """The only weights there are: `kept` blocks of `block` columns a row, int8, with the base inside them only.

    `trims_soft` and `trims_hard` say how many entries the builder left to the base alone (docs/guide/proc-sparse.md).
    """

    number = 3
    suffixes = (P_MAP, P_VAL, P_SCALE)
    unsigned = (P_MAP,)
    finite = (P_SCALE,)
    fits_experts = False
    scheme: Literal["proc_sparse"]
    block: Literal[32, 64]
    kept: int = Field(ge=1)
    trims_soft: int = Field(default=0, ge=0)
    trims_hard: int = Field(default=0, ge=0)

    def check(self, n_out: int, n_in: int) -> None:
        check_kept(self.kept, self.block, n_in)

    def layout(self, n_out: int, n_in: int) -> Layout:
        return {
            P_MAP: ((n_out, -(-n_in // (8 * self.block))), np.dtype("i1")),
            P_VAL: ((n_out, self.kept, self.block), np.dtype("i1")),
            P_SCALE: ((n_out,), np.dtype("<f2")),
        }

    def check_data(self, arrays: Arrays, n_in: int) -> None:
        blocks = -(-n_in // self.block)
        kept = np.unpackbits(arrays[P_MAP], axis=1, bitorder="little")
        if kept[:, blocks:].any() or (kept.sum(axis=1) != self.kept).any():
            raise ValueError(f"p_map does not have {self.kept} of {blocks} blocks in every row")


class NoResidual(Residual):
    number = 255
    scheme: Literal["none"]


_BASES: tuple[type[Base], ...] = (*kinds.BASES, LanesBase, NoBase)
_RESIDUALS: tuple[type[Residual], ...] = (*kinds.RESIDUALS, ProcSparseResidual, NoResidual)
BASES = {base.name(): base for base in _BASES}
RESIDUALS = {residual.name(): residual for residual in _RESIDUALS}
RESIDUAL_SUFFIXES = tuple(suffix for residual in _RESIDUALS for suffix in residual.suffixes)
SUFFIXES = (
    *(BASE_SEED, ROW_SCALE, CODES, FINE_CODES, FINE_MAP, COLUMN_SCALE),
    *(suffix for base in _BASES for suffix in base.suffixes),
    *RESIDUAL_SUFFIXES,
)
# stored in signed ggml types, meant as unsigned
UNSIGNED = (
    *(BASE_SEED, CODES, FINE_CODES, FINE_MAP),
    *(suffix for one in (*_BASES, *_RESIDUALS) for suffix in one.unsigned),
)
FINITE = (ROW_SCALE, *(suffix for one in _RESIDUALS for suffix in one.finite))
if TYPE_CHECKING:
    _AnyBase = Base
    _AnyResidual = Residual
else:
    _AnyBase = Annotated[one_of(_BASES), Field(discriminator="kind")]
    _AnyResidual = Annotated[one_of(_RESIDUALS), Field(discriminator="scheme")]


def as_unsigned(suffix: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A payload as it is meant: the same bytes, unsigned where the file's type is signed for want of another."""
    return array.view(array.dtype.str.replace("i", "u")) if suffix in UNSIGNED else array


def _as_stored(norm: float) -> float:
    """The float32 that a file has of a norm, so that a build decides by the numbers that a reader sees."""
    largest = float(np.finfo(np.float32).max)
    return float(np.float32(max(-largest, min(norm, largest))))


_Norm = Annotated[float, AfterValidator(_as_stored)]


class Norms(BaseModel):
    """Frobenius norms of W, Ŵ and W − Ŵ, plain and weighted by the columns' importance.

    `rel_out` is the relative error of the outputs, for a matrix that was encoded with the covariance of its inputs.
    """

    model_config = FROZEN
    w: _Norm
    w_hat: _Norm
    err: _Norm
    w_w: _Norm
    w_hat_w: _Norm
    err_w: _Norm
    rel_out: _Norm | None = None

    @property
    def error(self) -> float:
        """The relative error that a gap is about: the one that the encoder made small and the divergence follows. Of
        the outputs where their covariance is known (one of the weights alone may be above 1 there), else of the
        weights by importance, which without an imatrix is the plain one."""
        if self.rel_out is not None:
            return self.rel_out
        if self.w_w > 0:
            return self.err_w / self.w_w
        return 1.0 if self.err_w > 0 else 0.0


class TensorDescription(BaseModel):
    """What is needed to compute with one converted tensor, beside its payload.

    `shape` is [n_out, n_in], of each matrix where there are `experts` of them. `layout` is "column" where all outputs
    of an input are stored together.
    """

    model_config = FROZEN
    name: str
    shape: tuple[Annotated[int, Field(ge=1, le=1 << 31)], Annotated[int, Field(ge=1, le=1 << 31)]]
    experts: int | None = Field(default=None, ge=1, le=65536)
    layout: Literal["row", "column"] = "row"
    source_type: str
    base: _AnyBase
    residual: _AnyResidual
    row_scale: Literal["f16", "f32"]
    norms: Norms
    unsafe: bool

    @model_validator(mode="after")
    def _fits_the_shape(self) -> TensorDescription:
        n_out, n_in = self.shape
        block = self.rotation_block
        rotated = n_out if self.is_column else n_in
        if block and (block.bit_count() != 1 or rotated % block):
            side = "rows" if self.is_column else "columns"
            raise ValueError(f"rotation_block {block} is not a power of two that divides {rotated} {side}")
        if self.is_column and not can_be_column(self.base, self.residual, self.experts):
            raise ValueError("the layout column is for lanes without column_scale and residual, and not for experts")
        some = self.base.fine_tiles if isinstance(self.base, LanesBase) else 0
        if some and (self.is_column or self.experts is not None or some >= -(-n_out // LANES)):
            raise ValueError("fine_tiles are some of the tiles of one matrix by rows")
        self.residual.check(n_out, n_in)
        if isinstance(self.residual, ProcSparseResidual) and not self._base_fits_blocks(self.residual.block):
            raise ValueError("proc_sparse has the base none, or prng_block of the same block, one seed and no rotation")
        if self.experts is not None and not can_have_experts(self.base, self.residual):
            raise ValueError("experts have the base lanes or none, and neither codebook nor proc_sparse")
        self.base.check(n_out, n_in)
        return self

    def _base_fits_blocks(self, block: int) -> bool:
        base = self.base
        if isinstance(base, PrngBlockBase):
            return base.block == block and base.seed_per == "tensor" and base.rotation_block == 0
        return isinstance(base, NoBase)

    @property
    def is_column(self) -> bool:
        """True for the column layout."""
        return self.layout == "column"

    @property
    def stem(self) -> str:
        """Prefix of the payload names."""
        return self.name.removesuffix(".weight")

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of the dense tensor: [n_out, n_in], or [experts, n_out, n_in]."""
        return self.shape if self.experts is None else (self.experts, *self.shape)

    @property
    def rows(self) -> int:
        """Rows of all matrices."""
        return self.shape[0] * (self.experts or 1)

    @property
    def weights(self) -> int:
        """Weights of all matrices."""
        return self.rows * self.shape[1]

    @property
    def rotation_block(self) -> int:
        """Columns that are rotated together; 0 for none."""
        return int(getattr(self.base, "rotation_block", 0))

    @property
    def is_statecells(self) -> bool:
        """True for a whole weight made of a codebook alone (docs/guide/statecells.md)."""
        return isinstance(self.base, NoBase) and self.residual.scheme == "codebook_resid"

    @property
    def trims(self) -> int:
        """Entries of a proc-sparse weight that were shed."""
        residual = self.residual
        return residual.trims_soft + residual.trims_hard if isinstance(residual, ProcSparseResidual) else 0

    @property
    def is_proc_sparse(self) -> bool:
        """True for a weight of which only the kept blocks exist (docs/guide/proc-sparse.md)."""
        return isinstance(self.residual, ProcSparseResidual)


def can_have_experts(base: Base, residual: Residual) -> bool:
    """False for what numbers its rows throughout, or shares more than a rotation among them."""
    return isinstance(base, (LanesBase, NoBase)) and residual.fits_experts


def can_be_column(base: object, residual: object, experts: int | None) -> bool:
    """True for what the column layout is defined for."""
    return (
        isinstance(base, LanesBase) and not base.column_scale and isinstance(residual, NoResidual) and experts is None
    )
