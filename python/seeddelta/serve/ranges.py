"""Numbers between two bounds, as GBNF."""

from __future__ import annotations

import math
from typing import Any

from ..errors import RequestError
from .keywords import bound, refuse


def number_forms(words: dict[str, Any], kind: str) -> str:
    """A number or an integer."""
    words.pop("format", None)
    whole = kind == "integer"
    if words.get("multipleOf") == 1:
        del words["multipleOf"]
        whole = True
    refuse(words, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
    low, open_low = bound(words, "minimum", "exclusiveMinimum", max, -math.inf)
    high, open_high = bound(words, "maximum", "exclusiveMaximum", min, math.inf)
    if low == -math.inf and high == math.inf:
        return "integer" if whole else kind
    positive = _from(low, high, open_low, open_high, whole)
    negative = _from(-high, -low, open_high, open_low, whole)
    forms = positive + [f'"-" ( {form} )' for form in negative]
    if not forms:
        raise RequestError("minimum and maximum: no whole number lies between them")
    return " | ".join(forms)


def _from(low: float, high: float, open_low: bool, open_high: bool, whole: bool) -> list[str]:
    """Numbers of no sign between two bounds: whole ones, and those with a fraction that certainly lie between."""
    if high < 0:
        return []
    begin = 0 if low < 0 else math.ceil(low)
    end = None if high == math.inf else math.floor(high)
    forms = []
    first = begin + (low >= 0 and begin == low and open_low)
    last = end if end is None or not (open_high and end == high) else end - 1
    if last is None or first <= last:
        forms.append(whole_numbers(first, last))
    if not whole:
        below = None if end is None else end - 1
        if below is None or first <= below:
            forms.append(f"( {whole_numbers(first, below)} ) fraction")
        if first > begin and (below is None or begin <= below):
            forms.append(f'"{begin}" some-fraction')
    return forms


def whole_numbers(low: int, high: int | None) -> str:
    """Decimals from `low` to `high`, both included and not negative; None has no end, up to 16 digits more."""
    if high is None:
        if low == 0:
            return "whole"
        digits = len(str(low))
        longer = f"[1-9] [0-9]{{{digits},{digits + 15}}}"
        return f"{whole_numbers(low, 10**digits - 1)} | {longer}"
    forms = []
    while len(str(low)) < len(str(high)):
        top = 10 ** len(str(low)) - 1
        forms += _same_length(str(low), str(top))
        low = top + 1
    return " | ".join(forms + _same_length(str(low), str(high)))


def _same_length(low: str, high: str) -> list[str]:
    if not low:
        return ['""']
    if low[0] == high[0]:
        return [_joined(f'"{low[0]}"', one) for one in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    first, last, forms = int(low[0]), int(high[0]), []
    if int(low[1:] or 0):
        forms += [_joined(f'"{first}"', one) for one in _same_length(low[1:], "9" * rest)]
        first += 1
    tail = []
    if high[1:] != "9" * rest:
        tail = [_joined(f'"{last}"', one) for one in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        forms.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return forms + tail


def _joined(digit: str, rest: str) -> str:
    return digit if rest == '""' else f"{digit} {rest}"
