"""Which tensors can be converted, by name: llama.cpp's matrices, their roles, target groups and layer ranges.

llama.cpp names the tensors of all families alike: `blk.<layer>.<matrix>.weight`, and a few outside of the layers. A
matrix is what llama.cpp multiplies by, or looks rows up in. Which names those are is decided by the rule of its own
quantizer (tensor_allows_quantization, src/llama-quant.cpp): every weight but norms, biases, routers, small
convolutions and tables of positions (cpp/src/gating/patterns.cpp). The shape decides, too (gguf/targets.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from .. import _core
from ..errors import RecipeError

EMBEDDING, HEAD, LAYER_EMBEDDING = "token_embd.weight", "output.weight", "per_layer_token_embd.weight"
# outside of the layers, with a name of their own; they get one step more than the rest
MODEL_TENSORS = {EMBEDDING: "embd", HEAD: "head"}
# One matrix a head: llama.cpp multiplies by all of them in one MUL_MAT.
HEAD_MATRICES = ("attn_k_b", "attn_v_b")
STREAM_MATRICES = ("altup_proj.weight", "altup_unembd_proj.weight")  # gemma3n: one a stream of hidden states
_MLA = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", *HEAD_MATRICES)
BLOCK_ROLES = ("ffn", "experts", "shared", "attn", "mla", "ssm", "other")
ROLES = (*BLOCK_ROLES, "embd", "head")
# what --targets takes beside names of matrices, and the roles in it
GROUPS: dict[str, tuple[str, ...]] = {
    "full": ROLES, "all": BLOCK_ROLES, "ffn": ("ffn", "experts", "shared"), "attn": ("attn", "mla"),
    **{role: (role,) for role in ROLES if role not in ("ffn", "attn")},
}  # fmt: skip

_SMALL_MATRIX = re.compile(r"altup_(?:unembd_)?proj\.weight|laurel_[lr]\.weight|per_layer_model_proj\.weight")
_NAME = re.compile(r"blk\.(\d+)\.([\w.]+)\.weight")
_LAYERS = re.compile(r"(\d+)(?:-(\d+))?")
_FIRST: Final = (
    "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps",
    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate",
    "attn_output",
)  # fmt: skip


@cache
def matrices() -> tuple[str, ...]:
    """Matrices of a layer that gguf-py has names for, the common ones first."""
    from gguf.constants import TENSOR_NAMES

    prefix = "blk.{bid}."
    others = sorted({name.removeprefix(prefix) for name in TENSOR_NAMES.values() if name.startswith(prefix)})
    rest = [name for name in others if name not in _FIRST and is_matrix(f"blk.0.{name}.weight")]
    return (*_FIRST, *rest)


def parse_targets(names: str | Iterable[str]) -> tuple[str, ...]:
    """Targets without repetition from names of matrices and groups (one string with commas, or a list): groups first,
    then matrices that are in none of those.

    Raises RecipeError for a name that is neither.
    """
    if isinstance(names, str):
        names = names.split(",")
    wanted = {name.strip() for name in names}
    for name in sorted(wanted):
        if name not in GROUPS and name not in matrices():
            known = ", ".join((*GROUPS, *matrices()))
            raise RecipeError(f"target {name!r} is not known; choose from {known}")
    if not wanted:
        raise RecipeError("no target is given; use --targets all")
    groups = [name for name in GROUPS if name in wanted]
    roles = {role for group in groups for role in GROUPS[group]}
    widest = [g for g in groups if not any(set(GROUPS[g]) < set(GROUPS[other]) for other in groups)]
    return (*widest, *(name for name in matrices() if name in wanted and role_of_matrix(name) not in roles))


def default_targets(layers: str | None) -> tuple[str, ...]:
    """All targets; those of the blocks when only some layers are wanted."""
    return ("all",) if layers else ("full",)


def parse_layers(text: str | None, n_layers: int | None = None) -> frozenset[int] | None:
    """Layer numbers of "A-B", "A" or a list of those with commas; None (all layers) for an empty text.

    Raises RecipeError for a text of another form, a range that runs backwards, or (with `n_layers`) a layer beyond it.
    """
    if text is None or not text.strip():
        return None
    layers: set[int] = set()
    for part in text.split(","):
        match = _LAYERS.fullmatch(part.strip())
        if match is None:
            raise RecipeError(f"layers {text!r} is not of the form A-B (for example 0-29, or 0-3,8)")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > 100_000:
            raise RecipeError(f"layers {text!r} is an empty or impossible range; write the lower number first")
        layers.update(range(first, last + 1))
    if n_layers is not None and max(layers) >= n_layers:
        raise RecipeError(f"layers {text!r} asks for layer {max(layers)}, but the model has 0-{n_layers - 1}")
    return frozenset(layers)


def is_matrix(name: str) -> bool:
    """True for a name of a tensor that llama.cpp multiplies by or looks rows up in, if its shape is a matrix's."""
    return _core.is_matrix(name)


def is_small_matrix(name: str) -> bool:
    """True for a matrix that llama.cpp's quantizer leaves alone for its size."""
    return _SMALL_MATRIX.search(name) is not None


def split_name(name: str) -> tuple[int, str] | None:
    """(layer, matrix) of a tensor name, or None when it is not a matrix of a layer."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match is not None and is_matrix(name) else None


def role_of_matrix(matrix: str) -> str:
    """Role of a matrix of a layer, one of BLOCK_ROLES."""
    if matrix.endswith(("_exps", "_chexps")):
        return "experts"
    if matrix.endswith("_shexp"):
        return "shared"
    if matrix in _MLA:
        return "mla"
    if matrix.startswith(("ssm_", "shortconv.", "time_mix_", "channel_mix_")):
        return "ssm"
    return next((role for role in ("ffn", "attn") if matrix.startswith(f"{role}_")), "other")


def role_of(name: str) -> str:
    """Role of a matrix, one of ROLES."""
    place = split_name(name)
    if place is not None:
        return role_of_matrix(place[1])
    return "embd" if name == LAYER_EMBEDDING else MODEL_TENSORS.get(name, "other")


def label_of(name: str) -> str:
    """What a matrix is called in tables, whatever its layer: attn_q, embd, head, or the name without its ending."""
    place = split_name(name)
    return MODEL_TENSORS.get(name, name.removesuffix(".weight")) if place is None else place[1]


def in_group(matrix: str, group: str) -> bool:
    """True when a matrix of a layer belongs to one of GROUPS."""
    return role_of_matrix(matrix) in GROUPS[group]


def order_of(matrix: str) -> tuple[int, str]:
    """Key that sorts matrices in the order of `matrices`, unknown ones last."""
    known = matrices()
    return (known.index(matrix) if matrix in known else len(known), matrix)


def is_stacked(name: str) -> bool:
    """True for a tensor of three dimensions: a matrix for each expert, each head, or each stream."""
    place = split_name(name)
    if place is None:
        return name in STREAM_MATRICES
    return role_of_matrix(place[1]) == "experts" or place[1] in HEAD_MATRICES


def is_target(name: str, targets: Sequence[str], layers: frozenset[int] | None) -> bool:
    """True when a matrix is one of `targets` in one of `layers` (None: all); what is in no layer is in all of them."""
    place = split_name(name)
    if place is None:
        if not is_matrix(name) or _NAME.fullmatch(name):
            return False
        # what is in no layer is in `all` by no role
        return any(role_of(name) in GROUPS.get(target, ()) for target in targets if target != "all")
    layer, matrix = place
    wanted = matrix in targets or any(role_of_matrix(matrix) in GROUPS.get(target, ()) for target in targets)
    return wanted and (layers is None or layer in layers)
