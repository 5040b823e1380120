"""Pieces of GBNF, llama.cpp's form of grammars: literals, sets of characters, and JSON strings that match a pattern."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import RequestError

try:
    from re import _parser as _sre  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # Python 3.10
    import sre_parse as _sre

Ranges = list[tuple[int, int]]  # of code points, both ends included
MOST_TIMES = 2000  # of a repetition: llama.cpp takes a longer one for an endless one
_LAST = 0x10FFFF
# In a JSON string these are written with a backslash, and halves of surrogate pairs are no characters.
_SPECIAL: Ranges = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0xD800, 0xDFFF)]
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# What JavaScript and Python both take for \d, \s and \w, and what either of them takes.
_CATEGORIES: dict[str, tuple[Ranges, Ranges]] = {
    "DIGIT": ([(0x30, 0x39)], [(0x30, 0x39), (0x80, _LAST)]),
    "SPACE": (
        [(0x09, 0x0D), (0x20, 0x20)],
        [(0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
         (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)],
    ),
    "WORD": (
        [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
        [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A), (0x80, _LAST)],
    ),
}  # fmt: skip
_LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]


def literal(text: str) -> str:
    """A text as it is."""
    return '"' + "".join(map(_escaped, map(ord, text))) + '"'


def repeated(item: str, least: int, most: int | None) -> str:
    """An item some times; `most` None is without end."""
    if least == 1 and most == 1:
        return item
    return f"{item}{{{least}}}" if least == most else f"{item}{{{least},{'' if most is None else most}}}"


def string_characters(allowed: Ranges) -> str:
    """One character of a set, as it stands in a JSON string."""
    plain = minus(allowed, _SPECIAL)
    forms = [_class(plain)] if plain else []
    marked = [chr(code) for low, high in minus(allowed, complement(_SPECIAL[:3])) for code in range(low, high + 1)]
    forms += [literal("\\" + _SHORT[one]) for one in marked if one in _SHORT]
    if len(marked) < len(_SHORT):  # a set that has all of them hardly means them
        forms += [literal(f"\\u{ord(one):04x}") for one in marked if one not in _SHORT]
    if not forms:
        raise RequestError("pattern: a set of characters is empty")
    return forms[0] if len(forms) == 1 else f"({' | '.join(forms)})"


def string_pattern(pattern: str, add_rule: Callable[[str], str]) -> str:
    """What stands between the quotes of a JSON string that matches a regular expression.

    Without ^ the match begins at the string's first character; without $ anything may follow. `add_rule` makes a rule
    of a part and returns its name. Raises RequestError for what a grammar cannot say.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = list(_sre.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise RequestError(f"pattern {pattern[:60]!r}: cannot be read ({error})") from error
    if parsed and _at(parsed[0], "BEGINNING"):
        del parsed[0]
    if parsed and _at(parsed[-1], "END"):
        del parsed[-1]
        rest: list[str] = []
    else:
        rest = [repeated(add_rule(string_characters(complement([]))), 0, None)]
    return " ".join([_sequence(parsed, pattern, add_rule), *rest])


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other code points."""
    result, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            result.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*result, (begin, _LAST)] if begin <= _LAST else result


def minus(ranges: Ranges, others: Ranges) -> Ranges:
    """The code points of the first that are not of the second."""
    return complement([*complement(ranges), *others])


def _escaped(code: int) -> str:
    if 0x20 <= code < 0x7F and chr(code) not in '"\\[]-^':
        return chr(code)
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"


def _class(ranges: Ranges) -> str:
    return "[" + "".join(_escaped(low) + ("" if low == high else f"-{_escaped(high)}") for low, high in ranges) + "]"


def _at(node: Any, name: str) -> bool:
    return str(node[0]) == "AT" and str(node[1]).startswith(f"AT_{name}")


def _sequence(nodes: Iterable[Any], pattern: str, add_rule: Callable[[str], str]) -> str:
    return " ".join(_node(str(kind), value, pattern, add_rule) for kind, value in nodes) or '""'


def _node(kind: str, value: Any, pattern: str, add_rule: Callable[[str], str]) -> str:
    if kind == "LITERAL":
        return string_characters([(value, value)])
    if kind == "NOT_LITERAL":
        return string_characters(complement([(value, value)]))
    if kind == "ANY":
        return string_characters(complement(_LINE_ENDS))
    if kind == "IN":
        return string_characters(_set(value, pattern))
    if kind == "BRANCH":
        return "(" + " | ".join(_sequence(one, pattern, add_rule) for one in value[1]) + ")"
    if kind == "SUBPATTERN" and not value[1] and not value[2]:  # no flags
        return "(" + _sequence(value[3], pattern, add_rule) + ")"
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = int(value[0]), int(value[1]), value[2]
        unlimited = str(value[1]) == "MAXREPEAT"
        if least > MOST_TIMES:
            raise RequestError(f"pattern {pattern[:60]!r}: repeats {least} times; {MOST_TIMES} are taken")
        item = add_rule(_sequence(inner, pattern, add_rule))
        return repeated(item, least, None if unlimited else min(most, MOST_TIMES))
    raise RequestError(f"pattern {pattern[:60]!r}: {kind.lower().replace('_', ' ')} cannot be said in a grammar")


def _set(parts: Iterable[Any], pattern: str) -> Ranges:
    parts = list(parts)
    negated = str(parts[0][0]) == "NEGATE"
    found: Ranges = []
    for kind, value in parts[negated:]:
        name = str(kind)
        if name == "LITERAL":
            found.append((value, value))
        elif name == "RANGE":
            found.append(value)
        elif name == "CATEGORY":
            category = str(value).removeprefix("CATEGORY_")
            narrow, wide = _CATEGORIES[category.removeprefix("NOT_")]
            if category.startswith("NOT_"):
                found += complement(narrow if negated else wide)
            else:
                found += wide if negated else narrow
        else:
            raise RequestError(f"pattern {pattern[:60]!r}: {name.lower()} in a set cannot be said in a grammar")
    return complement(found) if negated else complement(complement(found))
