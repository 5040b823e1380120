"""Which tensors can be converted: names of llama.cpp's matrices, target groups and layer ranges.

llama.cpp names the block matrices of all families alike: `blk.<layer>.<target>.weight`. Some have one matrix for
queries, keys and values (`attn_qkv`: phi3, falcon, gpt2), or gate and up in one `ffn_up` (phi3). A mixture of experts
has three-dimensional tensors `ffn_*_exps`, one matrix an expert, and maybe shared experts, `ffn_*_shexp`. The token
embedding is `embd`, the output matrix `head`; models with tied embeddings have only the former.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import RecipeError

EXPERT_TARGETS = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps")
SHARED_TARGETS = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
FFN_TARGETS = ("ffn_gate", "ffn_up", "ffn_down", *EXPERT_TARGETS, *SHARED_TARGETS)
ATTN_TARGETS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")
TARGETS = FFN_TARGETS + ATTN_TARGETS
# outside of the blocks
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
MODEL_TENSORS = {EMBEDDING: "embd", HEAD: "head"}
KNOWN_TARGETS = TARGETS + tuple(MODEL_TENSORS.values())
GROUPS = {"ffn": FFN_TARGETS, "attn": ATTN_TARGETS, "all": TARGETS, "full": KNOWN_TARGETS}

_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_LAYERS = re.compile(r"(\d+)(?:-(\d+))?")


def parse_targets(names: str | Iterable[str]) -> tuple[str, ...]:
    """Targets in canonical order from names and the groups in GROUPS (one string with commas, or a list).

    Raises RecipeError for a name that is not a target.
    """
    if isinstance(names, str):
        names = names.split(",")
    wanted: set[str] = set()
    for name in (name.strip() for name in names):
        if name not in GROUPS and name not in KNOWN_TARGETS:
            known = ", ".join((*KNOWN_TARGETS, *GROUPS))
            raise RecipeError(f"target {name!r} is not known; choose from {known}")
        wanted.update(GROUPS.get(name, (name,)))
    if not wanted:
        raise RecipeError("no target is given; use --targets all")
    return tuple(target for target in KNOWN_TARGETS if target in wanted)


def default_targets(layers: str | None) -> tuple[str, ...]:
    """All targets; those of the blocks when only some layers are wanted."""
    return TARGETS if layers else KNOWN_TARGETS


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


def split_name(name: str) -> tuple[int, str] | None:
    """(layer, target) of a tensor name, or None when it is not a target matrix of a block."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match is not None and match[2] in TARGETS else None


def is_experts(name: str) -> bool:
    """True for a tensor of three dimensions with a matrix for each expert."""
    found = split_name(name)
    return found is not None and found[1] in EXPERT_TARGETS


def is_target(name: str, targets: Sequence[str], layers: frozenset[int] | None) -> bool:
    """True when the tensor is one of `targets` in one of `layers` (None: all). Embedding and head are in no layer."""
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name] in targets
    found = split_name(name)
    return found is not None and found[1] in targets and (layers is None or found[0] in layers)
