"""Tokens that a model has positions for: llama.cpp ends the process beyond them."""

from __future__ import annotations

from ..errors import EvaluationError
from .header import Header


def position_limit(header: Header) -> int | None:
    """Tokens of a context that a model with a table of positions takes; None where positions are computed."""
    table = header.tensors.get("position_embd.weight")
    return None if table is None else table.shape[0]


def check_context(header: Header, ctx: int) -> None:
    """Raise EvaluationError for a context that is longer than the model's table of positions."""
    limit = position_limit(header)
    if limit is not None and ctx > limit:
        raise EvaluationError(f"{header.path}: has positions for {limit} tokens, not for {ctx}; give --ctx {limit}")
