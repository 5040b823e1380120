"""Bits a weight of each tensor: the recipe's, and what --tensor-type says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seeddelta import _core

from ..gguf import names

RATES: tuple[float, ...] = tuple(sorted({code.bits for code in _core.lane_codes()}))
# In column layout, where a stream closes after 16 values: a quarter more error at 1 bit than by rows, a seventh at 1.5.
LEAST_COLUMN_RATE = 2
# one bit more, or the next rate there is
NEXT_RATE: dict[float, float] = {1: 2, 1.5: 2.5, 2: 3, 2.5: 3, 3: 4, 3.5: 4, 4: 5, 4.5: 5, 5: 6, 6: 6}


def lane_code(bits: float, *, column: bool = False) -> _core.LaneCode:
    """The code of byte lanes for a rate, one of RATES.

    Of the two of 3 bits the first has less error by rows. By columns, where a stream has 16 values, they are alike, and
    the product of one token with the second takes 8 to 20% less time.
    """
    codes = [code for code in _core.lane_codes() if code.bits == bits]
    return codes[-1 if column else 0]


@dataclass(frozen=True)
class Proc:
    """Proc-sparse (docs/guide/proc-sparse.md): blocks a row at most, or, below 1, the share of them."""

    fanout: float


Rate = float | Literal["dense"] | Proc


def parse_override(text: str) -> tuple[re.Pattern[str], Rate]:
    """`REGEX=RATE` of --tensor-type. Raises ValueError saying what is wrong."""
    pattern, found, rate = text.rpartition("=")
    if not found or not pattern:
        raise ValueError(f"{text!r} is not REGEX=RATE, for example attn_v=5 or 'blk\\.0\\..*=dense'")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
    if rate == "dense":
        return compiled, "dense"
    if rate.startswith("proc:"):
        return compiled, Proc(_fanout(rate.removeprefix("proc:")))
    try:
        bits = float(rate)
    except ValueError:
        bits = 0.0
    if bits not in RATES:
        raise ValueError(f"{rate!r} is no rate; choose from {', '.join(f'{r:g}' for r in RATES)}, dense or proc:FANOUT")
    return compiled, bits


def _fanout(text: str) -> float:
    try:
        fanout = float(text)
    except ValueError:
        fanout = 0.0
    if not 0 < fanout < float("inf"):
        raise ValueError(f"{text!r} is no fan-out; give a number of blocks a row, or a share of them below 1")
    return fanout


def embedding_share(shape: Sequence[int]) -> float:
    """What a weight of an embedding or output matrix [n_vocab, n_embd] costs, over SmolLM2's (49152 rows of 576).

    An error of a share of the rows' length costs the model the same however many rows there are: a token is looked up
    in one, and its logits have the errors of all. So a weight costs less the more rows there are for their length.
    """
    n_vocab, n_embd = shape
    return min(1.0, (n_embd / n_vocab) / (576 / 49152))


def rate_of(name: str, bits: float, *, overrides: tuple[str, ...], shape: Sequence[int] | None = None) -> Rate:
    """Rate of a tensor: `bits`, and one step more for embedding and output matrix, and for what llama.cpp's quantizer
    leaves alone.

    At 4 bits SmolLM2's (tied) embedding costs 7.8% of perplexity without calibration and 0.7% with the covariance, at 5
    bits 1.4% and 0.0%, for 4 MB of 74. Of more rows for their length, as Gemma 3 270M has (262144 of 640, two thirds of
    its weights), a step costs more than it gains. The last override whose expression is found in the name wins over
    everything.
    """
    override = overridden(name, overrides)
    if override is not None:
        return override
    large = name in names.MODEL_TENSORS and shape is not None and embedding_share(shape) < 0.5
    more = (name in names.MODEL_TENSORS and not large) or names.is_small_matrix(name)
    return NEXT_RATE[bits] if more else bits


def overridden(name: str, overrides: tuple[str, ...]) -> Rate | None:
    """Rate of the last override whose expression is found in the name."""
    found: Rate | None = None
    for text in overrides:
        pattern, rate = parse_override(text)
        if pattern.search(name):
            found = rate
    return found
