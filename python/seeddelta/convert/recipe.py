"""All options of a build, in one frozen model. The command line is made from it: descriptions are the help texts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .._extras import needs_extra
from .._yaml import load_yaml
from ..errors import RecipeError
from ..gguf import names, schema
from .rates import RATES, Proc, Rate, overridden, parse_override, rate_of

MAX_ROTATION = 64  # the block that was measured (larger ones cost more time a token and gain nothing)

TRELLIS_KINDS = ("trellis", "lanes")
COLUMN_POWER = 0.2  # measured on SmolLM2: 0.1 to 0.25 are alike, and better than none and than 0.35
# preset -> what it sets; options given beside it win
PRESETS: dict[str, dict[str, Any]] = {
    "trellis-4": {"base_kind": "trellis", "bits": 4},
    "trellis-3": {"base_kind": "trellis", "bits": 3},
    "trellis-2.5": {"base_kind": "trellis", "bits": 2.5},
    "trellis-2": {"base_kind": "trellis", "bits": 2},
    "tiny": {"base_kind": "trellis", "target_bpw": 2.4},
    "small": {"base_kind": "trellis", "target_bpw": 3.4},
    "balanced": {"base_kind": "trellis", "target_bpw": 4.4, "state_bits": 14},
    "quality": {"base_kind": "trellis", "target_bpw": 5.1, "state_bits": 14},
    "trellis-4-fine": {"base_kind": "trellis", "bits": 4, "state_bits": 14},
    "statecells": {"base_kind": "none", "scheme": "codebook_resid", "bits": 4, "K": "auto"},
    "prng-coo": {"base_kind": "prng_block", "scheme": "coo", "bits": 4, "K": "auto", "vals": "int8"},
}
_RATES = ("bits", "target_bpw", "target_size")  # of which one that is given takes the place of the preset's
# options that do not change the output
_NOT_IN_THE_BYTES = {
    "output", "report_json", "threads", "dry_run", "preset", "executor", "checkpoint", "no_checkpoint", "resume",
}  # fmt: skip
_EXECUTOR = re.compile(r"(threads|processes)(?::([1-9]\d{0,3}))?|dask://([^/\s]+:\d+)/?")


def parse_executor(text: str) -> tuple[str, int | None, str | None]:
    """Kind, number of jobs at a time, and address of `threads[:N]`, `processes[:N]` or `dask://host:port`.

    Raises ValueError for another form.
    """
    match = _EXECUTOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not threads, threads:N, processes, processes:N or dask://host:port")
    if match[3]:
        return "dask", None, match[3]
    return match[1], int(match[2]) if match[2] else None, None


def parse_size(text: str) -> int:
    """Bytes of `1234`, `90M`, `1.5G`, `90MiB`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not 0 < float(match[1]) < 1e15:
        raise ValueError(f"{text!r} is no size; give bytes, or for example 90M or 1.5G")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


class Options(BaseModel):
    """Options that do not change. Raises RecipeError, naming the option, where pydantic raises ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][:1])
            message = first["msg"].removeprefix("Value error, ")
            raise RecipeError(f"{where}: {message}" if where else message) from error


class Recipe(Options):
    """What to convert and how. Equal recipes and inputs give the same bytes, whatever the threads, executor and paths.

    Raises RecipeError for options that contradict each other or are out of range.
    """

    input: Path = Field(description="Dense GGUF model (F32, F16, BF16 or quantised).")
    output: Path = Field(description="SeedΔ file to write.")
    preset: str = Field(
        default="trellis-4", description=f"Named set of options: {', '.join(PRESETS)}. Others given win over it."
    )
    layers: str | None = Field(default=None, description="Layers to convert: A-B, or a list like 0-3,8. Default: all.")
    targets: tuple[str, ...] = Field(
        default=("full",),
        description="Matrices to convert, with commas: attn_q, ffn_up, … by their names in the model, or by role: ffn "
        "(with experts and shared), experts, shared (experts), attn (with mla), mla, ssm, other, all (of the layers); "
        "embd (embeddings), head (output matrix), full (everything). Default: full; all with --layers or a base other "
        "than the trellis.",
    )
    base_kind: Literal["prng_block", "fht_struct", "trellis", "lanes", "none"] = Field(
        default="trellis",
        description="Base W0. lanes: the trellis in byte lanes for the rates that it has (2, 3 and 4 bits, in rows), "
        "and the hashed trellis elsewhere.",
    )
    bits: float = Field(
        default=4,
        description="Bits a weight of the trellis: 1, 1.5, 2, 2.5, 3, 4, 5 or 6; embd and head get one step more.",
    )
    tensor_type: tuple[str, ...] = Field(
        default=(),
        description="REGEX=RATE: bits of the trellis, dense, or proc:FANOUT (proc-sparse), for tensors whose name has "
        "the expression. May be given often; the last that fits wins, over presets too.",
    )
    target_bpw: float | None = Field(
        default=None,
        gt=0,
        le=16,
        description="Choose the rates so that the converted tensors take at most this many bits a weight, all bytes "
        "counted (in place of --bits; --tensor-type still wins).",
    )
    target_size: str | None = Field(
        default=None, description="The same for the size of the whole file: bytes, or with K, M or G (powers of 1024)."
    )
    state_bits: Literal[12, 14, 16] = Field(
        default=12,
        description="Bits of the trellis state: 14 and 16 lose less and take 4 and 16 times as long to encode.",
    )
    rotation_block: Literal["auto"] | int = Field(
        default="auto",
        description=f"Columns rotated together: 0, a power of two, or auto (the largest up to {MAX_ROTATION}).",
    )
    layout: Literal["auto", "row", "column"] = Field(
        default="auto",
        description="How a matrix is stored: row, or column (all outputs of an input together, so that inputs can be "
        "skipped; trellis without a residual; not for experts, embd and head, which stay in rows). auto is row.",
    )
    column_tensor: tuple[str, ...] = Field(
        default=(),
        description="REGEX: column layout for tensors whose name has the expression, whatever --layout says. May be "
        "given often.",
    )
    column_power: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Columns are scaled by this power of their importance before the rotation, so that important ones "
        "err less (8 bits a column). Default: 0.2 with --hessian, 0 with --imatrix alone, whose few largest columns "
        "would own it.",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 64, description="Seed of the base, and of the signs of the rotation.")
    seed_search: int = Field(
        default=0,
        ge=0,
        description="Seeds tried for each tensor (or --seed-per), from --seed on; the one of the lowest error is kept "
        "(a trellis is encoded that often, and not with --hessian).",
    )
    seed_per: Literal["tensor", "row", "block"] = Field(
        default="tensor",
        description="What the seed search chooses a seed for (prng_block): row takes 2 bytes a row, block 3 bytes a "
        "block of --block columns and gives each block a gain; both need --seed-search 2 to 65536.",
    )
    base_scale: float | None = Field(
        default=None, description="Scale of a prng_block or fht_struct base. Default: fitted to each tensor."
    )
    scheme: Literal["coo", "block", "codebook_resid", "none"] | None = Field(
        default=None, description="Residual Δ. Default: none for the trellis, coo for the other bases."
    )
    K: Literal["auto"] | Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="What a row keeps: entries (coo, default 32), blocks (block, default 1) or atoms (codebook_resid, "
        "default 8); auto: as many as fit in --bits (not with the trellis).",
    )
    codebook_size: int = Field(
        default=256, ge=1, le=65536, description="Atoms of the dictionary of codebook_resid, one for each tensor."
    )
    block: Literal[8, 16, 32, 64] = Field(
        default=64,
        description="Columns of a block of the prng_block base (and of the block scheme: 32 or 64).",
    )
    vals: Literal["fp16", "int8"] = Field(default="fp16", description="Type of the residual's values.")
    proc_sparse: bool = Field(
        default=False,
        description="Store the tensors of --proc-target as blocks of int8 that a row keeps, on a hashed base of small "
        "scale, and nothing outside of the blocks (docs/proc-sparse.md). Other targets, if any are given, as usual.",
    )
    proc_target: Literal["mlp", "attn", "both"] = Field(
        default="mlp", description="Tensors of --proc-sparse; they are the targets when --targets is not given."
    )
    proc_fanout: float = Field(
        default=64,
        gt=0,
        description="Blocks that a row keeps at most; below 1: the share of them. For single layers: --tensor-type "
        "REGEX=proc:FANOUT.",
    )
    proc_block: Literal[32, 64] = Field(default=32, description="Columns of a block of --proc-sparse.")
    proc_base_scale: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Standard deviation of the hashed base, in units of the row's rms; 0: no base and no hashing.",
    )
    proc_watermark: int = Field(
        default=4096, ge=1, description="Entries of a row beyond this number are shed, the smallest first."
    )
    proc_shed_eps: float = Field(
        default=1e-3, ge=0, le=1, description="Entries below this, in units of the row's rms, are shed."
    )
    proc_head: int = Field(
        default=0,
        ge=0,
        description="Size of an attention head: rows of a head of attn_q, attn_k and attn_v keep the same blocks, and "
        "--proc-fanout is for the columns of each head of attn_output. 0: rows choose for themselves.",
    )
    row_scale: Literal["f16", "f32"] = Field(default="f16", description="Type of the scale of each row.")
    imatrix: Path | None = Field(default=None, description="Importance matrix of llama-imatrix (GGUF or .dat).")
    imatrix_power: float = Field(default=1.0, ge=0, le=4, description="Power of E[x²] that weighs the columns.")
    imatrix_eps: float = Field(default=1e-3, ge=0, description="Added to E[x²], in units of its mean.")
    hessian: Path | None = Field(
        default=None,
        description="Covariance of the inputs, from seeddelta imatrix --hessian: the trellis makes up for an error in "
        "the columns that go together with it.",
    )
    hessian_damp: float = Field(
        default=0.01, gt=0, le=1, description="Added to the diagonal of the covariance, in units of its mean."
    )
    eval_cols: int = Field(default=1024, ge=0, description="Columns on which the seed search compares seeds; 0: all.")
    seeddelta_gap: float = Field(
        default=1.0,
        gt=0,
        description="Largest relative error (of the outputs with a covariance, weighted with an imatrix); a tensor "
        "above it stays dense.",
    )
    report_json: Path | None = Field(default=None, description="Write the report of the build to this file.")
    threads: int = Field(default=0, ge=0, description="Threads; 0: all cores. The result does not depend on it.")
    executor: str = Field(
        default="threads",
        description="Where tensors are encoded: threads[:N] or processes[:N] (N at a time, which share --threads; by "
        "default 1 and the number of cores), or dask://host:port, a scheduler whose workers see the same paths "
        "(--threads each, 0: one). The result does not depend on it (with --hessian on one kind of CPU).",
    )
    checkpoint: Path | None = Field(
        default=None,
        description="Folder for finished tensors, removed with the output complete. Default: OUTPUT.parts.",
    )
    no_checkpoint: bool = Field(default=False, description="Keep no finished tensors: a killed build starts anew.")
    resume: bool = Field(
        default=True,
        description="Go on with the finished tensors of a build that was killed, if model and options are the same.",
    )
    dry_run: bool = Field(default=False, description="Show what would be converted and its size; write nothing.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, options: dict[str, Any]) -> dict[str, Any]:
        preset = options.get("preset", "trellis-4")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise ValueError(f"preset {preset!r} is not known; choose from {', '.join(PRESETS)}")
        if options.get("scheme") == "codebook":  # the flag --seeddelta-scheme calls it so
            options = options | {"scheme": "codebook_resid"}
        if options.get("base_kind", "trellis") in TRELLIS_KINDS or "preset" in options:
            given = any(options.get(name) is not None for name in _RATES)
            options = {k: v for k, v in PRESETS[preset].items() if not (given and k in _RATES)} | options
        if options.get("proc_sparse"):
            groups = {"mlp": "ffn", "attn": "attn", "both": "ffn,attn"}
            group = groups.get(str(options.get("proc_target", "mlp")), "all")
            return {"targets": group} | options
        blocks = options.get("base_kind", "trellis") not in TRELLIS_KINDS
        return {"targets": ("all",) if blocks else names.default_targets(options.get("layers"))} | options

    @field_validator("targets", mode="before")
    @classmethod
    def _parse_targets(cls, value: Any) -> tuple[str, ...]:
        if not isinstance(value, str) and not (
            isinstance(value, (tuple, list, set, frozenset)) and all(isinstance(name, str) for name in value)
        ):
            raise ValueError(f"{value!r} is no target, nor a list of targets")
        return names.parse_targets(value)

    @field_validator("layers")
    @classmethod
    def _check_layers(cls, value: str | None) -> str | None:
        names.parse_layers(value)
        return value

    @field_validator("bits")
    @classmethod
    def _check_bits(cls, value: float) -> float:
        if value not in RATES:
            raise ValueError(f"{value:g} bits are not known; choose from {', '.join(f'{bits:g}' for bits in RATES)}")
        return value

    @field_validator("tensor_type", mode="before")
    @classmethod
    def _check_tensor_type(cls, value: Any) -> tuple[str, ...]:
        overrides = (value,) if isinstance(value, str) else value
        if not isinstance(overrides, (tuple, list)) or not all(isinstance(text, str) for text in overrides):
            raise ValueError(f"{value!r} is not REGEX=RATE, nor a list of those")
        for text in overrides:
            parse_override(text)
        return tuple(overrides)

    @field_validator("column_tensor", mode="before")
    @classmethod
    def _check_column_tensor(cls, value: Any) -> tuple[str, ...]:
        patterns = (value,) if isinstance(value, str) else tuple(value)
        for text in patterns:
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"{text!r} is no regular expression ({error})") from error
        return patterns

    @field_validator("target_size")
    @classmethod
    def _check_target_size(cls, value: str | None) -> str | None:
        if value is not None:
            parse_size(value)
        return value

    @field_validator("executor")
    @classmethod
    def _check_executor(cls, value: str) -> str:
        parse_executor(value)
        return value

    @field_validator("rotation_block")
    @classmethod
    def _check_rotation(cls, value: Literal["auto"] | int) -> Literal["auto"] | int:
        if value != "auto" and value != 0 and (value < 0 or value.bit_count() != 1):
            raise ValueError(f"{value} is not auto, 0 or a power of two")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Recipe:
        if self.base_kind == "none" and self.scheme == "none":
            raise ValueError("a base of none with a residual of none stores nothing; use --scheme coo")
        if self.base_kind not in ("prng_block", "fht_struct") and self.base_scale is not None:
            raise ValueError("--base-scale is for --base-kind prng_block or fht_struct")
        if self.seed_search and (self.base_kind == "none" or self.hessian is not None):
            raise ValueError("--seed-search is for a base with a seed, and not with --hessian")
        if self.seed_per != "tensor":
            self._check_seed_per()
        if self.block < 32 and (self.base_kind != "prng_block" or self.residual_scheme == "block"):
            raise ValueError("--block 8 and 16 are for --base-kind prng_block, and not with --scheme block")
        if self.residual_scheme == "codebook_resid" and self.vals == "int8":
            raise ValueError("--vals int8 is for the schemes coo and block")
        if self.has_trellis and self.K == "auto" and self.residual_scheme != "none":
            raise ValueError("--K auto is for bases other than the trellis, which uses up --bits; give a number")
        if not self.has_trellis and self.hessian is not None:
            raise ValueError("--hessian is for --base-kind trellis")
        if not self.has_trellis and self.rotation_block not in ("auto", 0):
            raise ValueError("--rotation-block is for --base-kind trellis")
        if self.proc_sparse and not self.has_trellis:
            raise ValueError(
                "--proc-sparse is a weight of its own: leave --base-kind and presets other than trellis out"
            )
        given = sorted(name for name in self.model_fields_set if name.startswith("proc_") and name != "proc_sparse")
        if given and not self.uses_proc_sparse:
            raise ValueError(f"--{given[0].replace('_', '-')} is for --proc-sparse, or --tensor-type REGEX=proc:FANOUT")
        if self.target_bpw is not None and self.target_size is not None:
            raise ValueError("--target-bpw and --target-size exclude each other")
        if (self.target_bpw is not None or self.target_size is not None) and not self.has_trellis:
            raise ValueError("--target-bpw and --target-size are for --base-kind trellis")
        if (self.layout == "column" or self.column_tensor) and (not self.has_trellis or self.residual_scheme != "none"):
            raise ValueError("--layout column and --column-tensor are for --base-kind trellis without --scheme")
        if self.no_checkpoint and self.checkpoint is not None:
            raise ValueError("--checkpoint and --no-checkpoint exclude each other")
        if self.output == self.input or (
            self.output.exists() and self.input.exists() and self.output.samefile(self.input)
        ):
            raise ValueError(f"{self.output}: output and input are the same file; choose another output")
        return self

    def _check_seed_per(self) -> None:
        if self.base_kind != "prng_block" or self.base_scale is not None:
            raise ValueError(f"--seed-per {self.seed_per} is for --base-kind prng_block without --base-scale")
        if not 2 <= self.seed_search <= schema.MAX_SEED_CHOICES:
            raise ValueError(f"--seed-per {self.seed_per} needs --seed-search 2 to {schema.MAX_SEED_CHOICES}")

    @property
    def has_trellis(self) -> bool:
        """True when the base is a trellis, hashed or in byte lanes."""
        return self.base_kind in TRELLIS_KINDS

    @property
    def residual_scheme(self) -> Literal["coo", "block", "codebook_resid", "none"]:
        """The scheme, with the default of the base filled in."""
        if self.scheme is None:
            return "none" if self.has_trellis else "coo"
        return self.scheme

    @property
    def uses_proc_sparse(self) -> bool:
        """True when some tensor may be proc-sparse."""
        return self.proc_sparse or any(isinstance(parse_override(text)[1], Proc) for text in self.tensor_type)

    @property
    def target_of_preset(self) -> bool:
        """True when the budget is the preset's: it is for the tensors that --tensor-type leaves to it."""
        return self.target_bpw is not None and self.target_bpw == PRESETS[self.preset].get("target_bpw")

    @property
    def covariance_power(self) -> float:
        """`column_power` of a tensor that has a covariance, with the default filled in."""
        return COLUMN_POWER if self.column_power is None else self.column_power

    @property
    def parts_folder(self) -> Path | None:
        """Folder of the finished tensors, None for a temporary one."""
        if self.no_checkpoint:
            return None
        return self.checkpoint or self.output.with_name(self.output.name + ".parts")

    def rate_of(self, name: str) -> Rate:
        """Bits a weight of a tensor, "dense", or its fan-out when it is proc-sparse."""
        if self.proc_sparse and overridden(name, self.tensor_type) is None and self._is_proc_target(name):
            return Proc(self.proc_fanout)
        return rate_of(name, self.bits, overrides=self.tensor_type)

    def _is_proc_target(self, name: str) -> bool:
        groups = {"mlp": ("ffn",), "attn": ("attn",), "both": ("ffn", "attn")}[self.proc_target]
        place = names.split_name(name)
        return place is not None and any(names.in_group(place[1], group) for group in groups)

    def is_column(self, name: str) -> bool:
        """True for a tensor that is stored in column layout."""
        if names.split_name(name) is None or names.is_stacked(name):
            return False
        return self.layout == "column" or any(re.search(pattern, name) for pattern in self.column_tensor)

    def rotation_for(self, n_in: int) -> int:
        """`rotation_block` of a tensor with n_in columns. Raises RecipeError when a given one does not divide it."""
        if not self.has_trellis:
            return 0
        if self.rotation_block == "auto":
            block = min(n_in & -n_in, MAX_ROTATION)
            return block if block > 1 else 0
        if self.rotation_block and n_in % self.rotation_block:
            raise RecipeError(f"rotation_block {self.rotation_block} does not divide {n_in} columns; use auto")
        return self.rotation_block

    def entries_for(self, n_in: int, n_out: int) -> int:
        """What a row of a matrix [n_out, n_in] keeps: the number given, or what fits in `bits` beside the scales.

        Entries of coo, blocks of block, atoms of codebook_resid; 0 without a residual.
        """
        scheme = self.residual_scheme
        if scheme == "none":
            return 0
        value = 16 if self.vals == "fp16" else 8
        if scheme == "coo":
            most, default = n_in, 32
            entry = value + (16 if n_in <= schema.MAX_U16_COLUMNS else 32)
        elif scheme == "block":
            most, default = -(-n_in // self.block), 1
            entry = 16 + self.block * value + (16 if self.vals == "int8" else 0)
        else:
            most, default, entry = self.codebook_size, 8, 32
        if self.K != "auto":
            return min(self.K or default, most)
        shared = 16 if self.row_scale == "f16" else 32
        if scheme == "coo" and self.vals == "int8":
            shared += 16
        if self.seed_per == "row":
            shared += 16
        elif self.seed_per == "block":
            shared += 24 * -(-n_in // self.block)
        room = self.bits * n_in - shared
        if scheme == "codebook_resid":
            room -= 16 * self.codebook_size * n_in / n_out  # the dictionary
        return max(1, min(int(room // entry), most))

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.of_recipe(self)

    def provenance(self) -> dict[str, Any]:
        """The options that decide the bytes of the file, for its key `seeddelta.recipe`: no paths, no threads."""
        options = self.model_dump(mode="json", exclude=_NOT_IN_THE_BYTES)
        options["input"] = self.input.name
        options["imatrix"] = None if self.imatrix is None else self.imatrix.name
        options["hessian"] = None if self.hessian is None else self.hessian.name
        return options

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **options: Any) -> Recipe:
        """Recipe from a YAML file of options; `options` win over those in the file. Raises RecipeError."""
        return cls(**(read_yaml(path) | options))

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write the options that differ from the defaults, and those of the preset."""
        with needs_extra("cli"):
            import yaml

        options = self.model_dump(mode="json", exclude_unset=True)
        Path(path).write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Options in a YAML file. Raises RecipeError when it is unreadable or no mapping."""
    try:
        options = load_yaml(Path(path).read_bytes().decode())
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); check the path of the recipe") from error
    except ValueError as error:
        raise RecipeError(f"{path}: not YAML ({error})") from error
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise RecipeError(f"{path}: a recipe is a mapping of option to value, for example `bits: 3`")
    return options
