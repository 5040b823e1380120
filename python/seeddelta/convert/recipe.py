"""What to convert and how: the settings of settings/recipe.py, checked together, and what they mean for a tensor."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from ..errors import RecipeError, needs_extra
from ..gguf import names
from ..gguf.converter import dense_gguf
from ..html import table
from ..kinds import BASE_OF, BASES, RESIDUAL_OF, RESIDUALS
from ..kinds.kind import Kind
from ..settings.recipe import MAX_ROTATION, PRESETS, RecipeSettings
from ..settings.tree import deciding
from ..settings.yaml import load_mapping
from .rates import LEAST_COLUMN_RATE, RATES, Proc, Rate, overridden, parse_override, rate_of

COLUMN_POWER = 0.2  # measured on SmolLM2: 0.1 to 0.25 are alike, and better than none and than 0.35
# of which one that is given takes the place of the preset's
_RATES = {"bits": "--bits", "target_bpw": "--bpw", "size": "--size"}
QUANTIZE_PRESET = "balanced"  # of `quantize` without a rate
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
    """Bytes of `1234`, `90M`, `1.5G`, `90MB`, in powers of 1000. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if match is None or not 0 < float(match[1]) < 1e15:
        raise ValueError(f"{text!r} is no size; give bytes, or for example 90M or 1.5G")
    return int(float(match[1]) * 1000 ** " KMG".index(match[2].upper() or " "))


def with_rate(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for `quantize`, with its preset where they have no rate."""
    given = any(options.get(name) is not None for name in ("preset", *_RATES))
    return dict(options) if given else {"preset": QUANTIZE_PRESET} | dict(options)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class Recipe(RecipeSettings):
    """What to convert and how. Equal recipes and inputs give the same bytes, whatever the threads, executor and paths.

    Raises RecipeError for options that contradict each other or are out of range.
    """

    def _repr_html_(self) -> str:
        """The options that were given, or that differ from the defaults."""
        fields = type(self).model_fields
        shown = [
            (name, _text(value))
            for name, value in self.model_dump(mode="json").items()
            if name in self.model_fields_set or value != fields[name].get_default()
        ]
        return table(("option", "value"), shown, text_columns=2)

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, options: dict[str, Any]) -> dict[str, Any]:
        preset = options.get("preset")
        if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
            raise ValueError(f"preset {preset!r} is not known; choose from {', '.join(PRESETS)}")
        rates = [f"{flag} {options[name]}" for name, flag in _RATES.items() if options.get(name) is not None]
        if len(rates) > 1:
            raise ValueError(f"{' and '.join(rates)} contradict each other; give one of {', '.join(_RATES.values())}")
        if options.get("scheme") == "codebook":  # the flag --seeddelta-scheme calls it so
            options = options | {"scheme": "codebook_resid"}
        if preset is not None:
            given = any(options.get(name) is not None for name in _RATES)
            options = {k: v for k, v in PRESETS[preset].items() if not (given and k in _RATES)} | options
        if options.get("proc_sparse"):
            groups = {"mlp": "ffn", "attn": "attn", "both": "ffn,attn"}
            group = groups.get(str(options.get("proc_target", "mlp")), "all")
            return {"targets": group} | options
        blocks = options.get("base_kind", "lanes") != "lanes"
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

    @field_validator("size", "split_max_size")
    @classmethod
    def _check_size(cls, value: str | None) -> str | None:
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
        if self.base_kind not in BASE_OF and self.base_scale is not None:
            raise ValueError(f"--base-scale is for --base-kind {' or '.join(BASE_OF)}")
        if self.seed_search and (self.base_kind == "none" or (self.has_codes and self.hessian is not None)):
            raise ValueError("--seed-search is for a base with a seed, and of byte lanes not with --hessian")
        kinds: tuple[type[Kind], ...] = (*BASES, *RESIDUALS)
        for kind in kinds:
            kind.check_recipe(self)
        if self.has_codes and self.K == "auto" and self.residual_scheme != "none":
            raise ValueError("--K auto is for bases other than lanes, which uses up --bits; give a number")
        if not self.has_codes and self.hessian is not None and not self.seed_search:
            raise ValueError("--hessian is for --base-kind lanes, and for --seed-search, whose columns it weighs")
        if self.gradient is not None and self.residual_scheme != "none":
            raise ValueError("a gradient is for --base-kind lanes without --scheme")
        if not self.has_codes and self.rotation_block not in ("auto", 0):
            raise ValueError("--rotation-block is for --base-kind lanes")
        if self.proc_sparse and not self.has_codes:
            raise ValueError("--proc-sparse is a weight of its own: leave --base-kind and presets of other bases out")
        given = sorted(name for name in self.model_fields_set if name.startswith("proc_") and name != "proc_sparse")
        if given and not self.uses_proc_sparse:
            raise ValueError(f"--{given[0].replace('_', '-')} is for --proc-sparse, or --tensor-type REGEX=proc:FANOUT")
        if (self.target_bpw is not None or self.size is not None) and not self.has_codes:
            raise ValueError("--bpw and --size are for --base-kind lanes")
        if (self.layout == "column" or self.column_tensor) and (not self.has_codes or self.residual_scheme != "none"):
            raise ValueError("--layout column and --column-tensor are for --base-kind lanes without --scheme")
        if self.no_checkpoint and self.checkpoint is not None:
            raise ValueError("--checkpoint and --no-checkpoint exclude each other")
        return self

    @contextmanager
    def with_dense_input(self, *, progress: bool = True) -> Iterator[Recipe]:
        """The recipe with a GGUF file as its input: downloaded, or made by the converter and removed at the end."""
        made = self.output.with_name(self.output.name + ".original")

        def say(line: str) -> None:
            if progress:
                print(line, file=sys.stderr)

        with dense_gguf(self.input, self.converter, made.absolute(), say) as model:
            yield self.model_copy(update={"input": model} | ({"converter": None} if self.converter else {}))

    @property
    def has_codes(self) -> bool:
        """True when the base is made of codes, byte lanes."""
        return self.base_kind == "lanes"

    @property
    def residual_scheme(self) -> str:
        """The scheme, with the default of the base filled in."""
        if self.scheme is None:
            return "none" if self.has_codes else "coo"
        return self.scheme

    @property
    def uses_proc_sparse(self) -> bool:
        """True when some tensor may be proc-sparse."""
        return self.proc_sparse or any(isinstance(parse_override(text)[1], Proc) for text in self.tensor_type)

    @property
    def target_of_preset(self) -> bool:
        """True when the budget is the preset's: it is for the tensors that --tensor-type leaves to it."""
        own = None if self.preset is None else PRESETS[self.preset].get("target_bpw")
        return own is not None and self.target_bpw == own

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

    def rate_of(self, name: str, shape: Sequence[int]) -> Rate:
        """Bits a weight of a tensor of that shape, "dense", or its fan-out when it is proc-sparse."""
        if self.proc_sparse and overridden(name, self.tensor_type) is None and self._is_proc_target(name):
            return Proc(self.proc_fanout)
        return rate_of(name, self.bits, overrides=self.tensor_type, shape=shape)

    @property
    def rates(self) -> tuple[float, ...]:
        """Bits a weight that a tensor can have, rising."""
        by_column = self.layout == "column" or bool(self.column_tensor)
        return tuple(bits for bits in RATES if bits >= LEAST_COLUMN_RATE or not by_column)

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
        if not self.has_codes:
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
        kind = RESIDUAL_OF.get(self.residual_scheme)
        if kind is None:
            return 0
        most, entry, beside = kind.room(self, n_in, n_out)
        if self.K != "auto":
            return min(self.K or kind.entries, most)
        shared = 16 if self.row_scale == "f16" else 32
        if self.base_kind in BASE_OF:
            shared += BASE_OF[self.base_kind].row_bits(self, n_in)
        return max(1, min(int((self.bits * n_in - shared - beside) // entry), most))

    def provenance(self) -> dict[str, Any]:
        """The options that decide the bytes of the file, for its key `seeddelta.recipe`: no paths, no threads."""
        options = self.model_dump(mode="json", exclude=deciding(type(self), "nothing"))
        options["input"] = self.input.name
        options["imatrix"] = None if self.imatrix is None else self.imatrix.name
        options["hessian"] = None if self.hessian is None else self.hessian.name
        options["gradient"] = None if self.gradient is None else self.gradient.name
        return options

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **options: Any) -> Recipe:
        """Recipe from a YAML file of options; `options` win over those in the file. Raises RecipeError."""
        return cls(**(load_mapping(Path(path), RecipeError) | options))

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write the options that differ from the defaults, and those of the preset."""
        with needs_extra("cli"):
            import yaml

        options = self.model_dump(mode="json", exclude_unset=True)
        Path(path).write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")
