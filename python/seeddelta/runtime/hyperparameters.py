"""What llama.cpp asserts of a header: where it does not hold it ends the process, and refuses no file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from ..errors import EvaluationError, FormatError
from ..gguf.header import Header

ALIGNMENT = 32  # of tensors: TENSOR_ALIGNMENT, ggml/src/ggml-backend.cpp
_INTEGERS = {GGMLQuantizationType[name] for name in ("I8", "I16", "I32", "I64")}  # not computed with, looked up
_NO_VECTORS = set(GGMLQuantizationType) - {GGMLQuantizationType.F32} - _INTEGERS
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS, src/llama-hparams.h
_SCALINGS = ("none", "linear", "yarn", "longrope")  # LLAMA_ROPE_SCALING_TYPES, src/llama-model.cpp


def check_hyperparameters(header: Header) -> None:
    """Raise FormatError for what the asserts of llama_model_base::load_hparams (src/llama-model.cpp) and of the
    normalizations (ggml/src/ggml-cpu/ops.cpp) do not survive. A key that is missing is llama.cpp's to refuse.
    """
    architecture = header.metadata.scalar("general.architecture", str, "")

    def numbers(name: str) -> list[Any]:
        value = header.metadata.get(f"{architecture}.{name}", 0)
        found = value.tolist() if isinstance(value, np.ndarray) else [value]
        if not found or not all(isinstance(number, (int, float)) for number in found):
            raise _refused(header, f"{architecture}.{name}", "is no number")
        return found

    def require(holds: bool, name: str, what: str) -> None:
        if not holds:
            raise _refused(header, f"{architecture}.{name}", f"{what}, and is {_text(numbers(name))}")

    if header.alignment % ALIGNMENT != 0:
        raise _refused(header, "general.alignment", f"must be a multiple of {ALIGNMENT}, and is {header.alignment}")
    if f"{architecture}.block_count" in header.metadata:
        (layers, *_) = numbers("block_count")
        require(0 < layers <= _MAX_LAYERS, "block_count", f"must be between 1 and {_MAX_LAYERS}")
    experts, used = max(numbers("expert_count")), max(numbers("expert_used_count"))
    require(used <= experts, "expert_used_count", f"must be at most expert_count, {experts}")
    require(used > 0 or experts == 0, "expert_used_count", "must be above 0")
    groups = max(numbers("expert_group_count"))
    require(groups == 0 or groups < experts, "expert_group_count", f"must be below expert_count, {experts}")
    if groups > 1:
        require(experts % groups == 0, "expert_group_count", f"must divide expert_count, {experts}")
        chosen = max(numbers("expert_group_used_count"))
        require(0 < chosen < groups, "expert_group_used_count", f"must be between 1 and {groups - 1}")
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
        key = f"attention.{name}"
        require(all(math.isfinite(e) and e >= 0 for e in numbers(key)), key, "must be 0 or more")
    scaling = header.metadata.scalar(f"{architecture}.rope.scaling.type", str, "linear")
    if scaling not in _SCALINGS:
        raise _refused(
            header, f"{architecture}.rope.scaling.type", f"is {scaling[:20]!r}, which llama.cpp does not know"
        )


def position_limit(header: Header) -> int | None:
    """Tokens of a context that a model with a table of positions takes; None where positions are computed."""
    table = header.tensors.get("position_embd.weight")
    return None if table is None else table.shape[0]


def check_context(header: Header, ctx: int) -> None:
    """Raise EvaluationError for a context that is longer than the model's table of positions."""
    limit = position_limit(header)
    if limit is not None and ctx > limit:
        raise EvaluationError(f"{header.path}: has positions for {limit} tokens, not for {ctx}; give --ctx {limit}")


def check_loadable(header: Header) -> None:
    """Raise FormatError for a model that ends the process when llama.cpp loads it or computes with it."""
    check_hyperparameters(header)
    for tensor in header.tensors.values():
        if len(tensor.shape) == 1 and ("norm" in tensor.name or tensor.name.endswith(".bias")):
            check_vector(header, tensor.name, tensor.type)


def check_vector(header: Header, name: str, kind: int) -> None:
    """Raise FormatError for a tensor of one dimension that ggml's additions and products of vectors abort on."""
    if kind in _NO_VECTORS:
        raise FormatError(
            f"{header.path}: the tensor {name!r} has one dimension and is {GGMLQuantizationType(kind).name}, which "
            "llama.cpp does not compute with; the file is corrupt, build it again"
        )


def _refused(header: Header, key: str, what: str) -> FormatError:
    return FormatError(f"{header.path}: {key} {what}; the file is corrupt, build it again")


def _text(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in list(values)[:4])
