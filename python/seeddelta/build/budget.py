"""Rates that meet a budget: --target-bpw and --target-size.

All tensors start at the lowest rate. The one that is furthest behind goes one rate up while everything fits, where the
sensitive ones (rates.py) are wanted one step ahead of the others, as in the mixed presets. So the result lies between
the presets: no errors are measured, and equal inputs give equal rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import RecipeError
from ..gguf import names
from .rates import RATES, Rate, is_sensitive

# among tensors that are equally far behind: where a bit helps most comes first
_ORDER = ("attn_v", "attn_qkv", "ffn_down", "attn_output", "attn_k", "attn_q", "ffn_up", "ffn_gate")


def fit_rates(
    rates: Mapping[str, Rate], fixed: set[str], budget: int, bytes_at: Callable[[str, Rate], int], n_layers: int | None
) -> dict[str, Rate]:
    """Rates of all tensors of `rates`, whose bytes together are at most `budget`; those of `fixed` stay.

    Raises RecipeError when even the lowest rates do not fit.
    """
    ladder = sorted(RATES)
    chosen: dict[str, Rate] = {name: rate if name in fixed else ladder[0] for name, rate in rates.items()}
    used = sum(bytes_at(name, rate) for name, rate in chosen.items())
    if used > budget:
        raise RecipeError(
            f"the tensors take {used} bytes at the lowest rates, the target leaves {budget}; "
            "raise the target, or free some with --tensor-type or --targets"
        )
    free = [name for name in chosen if name not in fixed]
    order = {name: (not is_sensitive(name, n_layers), _rank(name), at) for at, name in enumerate(free)}
    step = dict.fromkeys(free, 0)
    while free:
        name = min(free, key=lambda n: (step[n] - is_sensitive(n, n_layers), order[n]))
        if step[name] + 1 == len(ladder):
            free.remove(name)
            continue
        more = bytes_at(name, ladder[step[name] + 1]) - bytes_at(name, ladder[step[name]])
        if used + more > budget:
            free.remove(name)  # a smaller one may still fit
            continue
        used += more
        step[name] += 1
        chosen[name] = ladder[step[name]]
    return chosen


def _rank(name: str) -> int:
    place = names.split_name(name)
    matrix = "" if place is None else place[1].removesuffix("_exps").removesuffix("_shexp")
    return _ORDER.index(matrix) if matrix in _ORDER else len(_ORDER)
