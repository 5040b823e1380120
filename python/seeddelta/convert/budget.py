"""Rates that meet a budget: --bpw, --size and the presets.

What a tensor costs the model is its price times the square of the code's error at its rate: with small errors the
divergence from the original model is a quadratic form of them, and those of different matrices add up.
All tensors start at the lowest rate; the step that takes off most for its bytes is
next, while it fits. The steps of CODE_ERROR take off less and less a byte, so that no other choice of the same bytes
costs less, but for the last step. Prices are measured with the gradients (prices.py). Without them they are a table by
kind and place: equal shapes and names give equal rates.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from statistics import median

from ..errors import RecipeError
from ..gguf import names
from .rates import Rate, embedding_share

# Mean square error of byte lanes by bits, of Gaussian numbers of variance 1 and the default effort.
CODE_ERROR: dict[float, float] = {
    1: 0.279, 1.5: 0.1465, 2: 0.0739, 2.5: 0.0389, 3: 0.0189, 3.5: 0.01, 4: 0.00485, 4.5: 0.0025,
    5: 0.001256, 6: 0.000353,
}  # fmt: skip
# Divergence a weight at equal bits, over that of attn_output: rounded from what groups of matrices cost SmolLM2
# (research/rates), with the first and the last layer alike. Its first layer's attention costs next to nothing, which is
# left out: nothing says that other models are like that. An expert sees a part of the tokens: not measured, taken for a
# quarter.
SENSITIVITY = {
    "attn_q": 0.5, "attn_k": 2.0, "attn_v": 4.0, "attn_qkv": 2.0, "attn_output": 1.0,
    "ffn_gate": 0.75, "ffn_up": 1.0, "ffn_down": 1.5, "embd": 2.0, "head": 2.0,
    # Not measured, by analogy: all heads read the compressed keys and values, as k and v; what mixes tokens into a
    # state is taken for qkv and attn_output; a row of the embeddings of the layers is one input of many; what stands
    # between the streams of gemma3n is small and passed by every token.
    "attn_kv_a_mqa": 4.0, "attn_kv_b": 3.0, "attn_k_b": 2.0, "attn_v_b": 4.0, "attn_q_b": 0.5,
    "ssm_in": 2.0, "ssm_out": 1.0, "shortconv.in_proj": 2.0, "shortconv.out_proj": 1.0, "per_layer_token_embd": 0.5,
    "altup_proj": 4.0, "altup_unembd_proj": 4.0, "per_layer_model_proj": 4.0, "laurel_l": 4.0, "laurel_r": 4.0,
}  # fmt: skip
OTHERS = 1.0  # of matrices that the table does not have; not measured
OUTER = {"ffn_up": 4.0, "ffn_down": 4.0}  # of the first and the last layer
EXPERT = 0.25


def sensitivity(name: str, n_layers: int | None, shape: Sequence[int]) -> float:
    """Loss a weight of a tensor of that shape, relative to others at equal bits."""
    place = names.split_name(name)
    if place is None:
        share = embedding_share(shape) if name in names.MODEL_TENSORS else 1.0
        return share * SENSITIVITY.get(names.label_of(name), OTHERS)
    layer, matrix = place
    kind = re.sub("_(exps|chexps|shexp)$", "", matrix).replace("gate_up", "up")
    outer = OUTER if layer == 0 or (n_layers is not None and layer == n_layers - 1) else {}
    return outer.get(kind, SENSITIVITY.get(kind, OTHERS)) * (EXPERT if names.role_of(name) == "experts" else 1.0)


def costs(
    tensors: Iterable[str],
    n_layers: int | None,
    shapes: Mapping[str, Sequence[int]],
    measured: Callable[[str], float | None],
) -> dict[str, float]:
    """Price of each tensor: the measured one, or by the table, in the measure of the others."""
    table = {name: sensitivity(name, n_layers, shapes[name]) * prod(shapes[name]) for name in tensors}
    prices = {name: price for name in table if (price := measured(name)) is not None}
    unit = median(price / table[name] for name, price in prices.items()) if prices else 1.0
    return {name: prices.get(name, unit * cost) for name, cost in table.items()}


def loss(prices: Mapping[str, float], rates: Mapping[str, Rate]) -> float:
    """What all tensors that have bits cost."""
    return sum(prices[name] * CODE_ERROR[rate] for name, rate in rates.items() if isinstance(rate, (int, float)))


def fit_rates(
    rates: Mapping[str, Rate],
    fixed: set[str],
    budget: int,
    prices: Mapping[str, float],
    ladder: Sequence[float],
    bytes_at: Callable[[str, Rate], int],
) -> dict[str, Rate]:
    """Rates of all tensors of `rates`, whose bytes together are at most `budget`; those of `fixed` stay.

    `ladder` are the rates that a tensor can have, rising. Of tensors that gain alike
    those of later layers come first: on SmolLM2 they cost a third more.

    Raises RecipeError when even the lowest rates do not fit.
    """
    chosen: dict[str, Rate] = {name: rate if name in fixed else ladder[0] for name, rate in rates.items()}
    used = sum(bytes_at(name, rate) for name, rate in chosen.items())
    if used > budget:
        raise RecipeError(
            f"the matrices take {used / 1e6:.1f} MB at the lowest rates, and --size or --bpw leaves "
            f"{max(0, budget) / 1e6:.1f} MB for them (sizes are written as 80M); raise it, or free some with "
            "--tensor-type or --targets"
        )
    steps: list[tuple[float, int, str, int, int]] = []

    def offer(name: str, order: int, at: int) -> None:
        """Put the next step of a tensor at rate number `at` on the heap, the largest gain a byte first."""
        if at + 1 == len(ladder):
            return
        low, high = ladder[at], ladder[at + 1]
        more = bytes_at(name, high) - bytes_at(name, low)
        gain = prices[name] * (CODE_ERROR[low] - CODE_ERROR[high])
        heapq.heappush(steps, (-gain / max(more, 1), order, name, at + 1, more))

    free = sorted((name for name in chosen if name not in fixed), key=_layer)
    for order, name in enumerate(free):
        offer(name, order, 0)
    while steps:
        _, order, name, at, more = heapq.heappop(steps)
        if used + more > budget:
            continue  # a smaller one may still fit
        used += more
        chosen[name] = ladder[at]
        offer(name, order, at)
    return chosen


def _layer(name: str) -> int:
    place = names.split_name(name)
    return 1 if place is None else -place[0]
