"""Numbers between two bounds, as GBNF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError

KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_MOST = 1e15  # of a bound's magnitude
# Rules that the expressions use.
RULES = {
    "whole": '"0" | [1-9] [0-9]{0,15}',
    "fraction": '"." [0-9]{1,16}',
    "some-fraction": '"." "0"{0,8} [1-9] [0-9]{0,8}',
}


def number_between(words: Mapping[str, Any], whole: bool) -> str:
    """An expression of the integers (`whole`) or numbers that KEYWORDS leave. Raises RequestError when none is left.

    Next to a bound that is no whole number, and for numbers without a whole part of their own sign, it takes fewer.
    """
    for name, value in words.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _MOST:
            raise RequestError(f"{name} {value!r:.60} is no number that is taken")
    low, above = words.get("minimum", -math.inf), words.get("exclusiveMinimum", -math.inf)
    high, below = words.get("maximum", math.inf), words.get("exclusiveMaximum", math.inf)
    ends = max(low, above), min(high, below)
    excluded = above >= low and above > -math.inf, below <= high and below < math.inf
    forms = _from(ends[0], ends[1], excluded[0], excluded[1], whole)
    forms += [f'"-" ( {form} )' for form in _from(-ends[1], -ends[0], excluded[1], excluded[0], whole)]
    if not forms:
        raise RequestError("minimum and maximum: no whole number lies between them")
    return " | ".join(forms)


def _from(low: float, high: float, open_low: bool, open_high: bool, whole: bool) -> list[str]:
    """Numbers without a sign between two bounds: whole ones, and those with a fraction that certainly lie between."""
    if high < 0:
        return []
    begin = 0 if low < 0 else math.ceil(low)
    end = None if high == math.inf else math.floor(high)
    first = begin + (low >= 0 and begin == low and open_low)
    last = end if end is None or not (open_high and end == high) else end - 1
    forms = [_whole_numbers(first, last)] if last is None or first <= last else []
    if not whole:
        below = None if end is None else end - 1
        if below is None or first <= below:
            forms.append(f"( {_whole_numbers(first, below)} ) fraction")
        if first > begin and (below is None or begin <= below):
            forms.append(f'"{begin}" some-fraction')
    return forms


def _whole_numbers(low: int, high: int | None) -> str:
    """Decimals from `low` to `high`, both included and not negative; None has no end, up to 16 digits more."""
    if high is None:
        if low == 0:
            return "whole"
        digits = len(str(low))
        return f"{_whole_numbers(low, 10**digits - 1)} | [1-9] [0-9]{{{digits},{digits + 15}}}"
    forms = []
    while len(str(low)) < len(str(high)):
        top = 10 ** len(str(low)) - 1
        forms += _same_length(str(low), str(top))
        low = top + 1
    return " | ".join(forms + _same_length(str(low), str(high)))


def _same_length(low: str, high: str) -> list[str]:
    """Decimals between two of as many digits: those that begin as `low` does, as `high` does, and between them."""
    if not low:
        return ['""']
    if low[0] == high[0]:
        return [_joined(f'"{low[0]}"', one) for one in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    first, last, forms, tail = int(low[0]), int(high[0]), [], []
    if int(low[1:] or 0):
        forms = [_joined(f'"{first}"', one) for one in _same_length(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        tail = [_joined(f'"{last}"', one) for one in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        forms.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return forms + tail


def _joined(digit: str, rest: str) -> str:
    return digit if rest == '""' else f"{digit} {rest}"
