"""Grammars that can be read in ever more ways while one character is repeated.

llama.cpp follows all ways at once. Where each character doubles them, it takes a token of 32 equal characters, which
vocabularies have, for more ways than any memory holds. Ways that grow with whole tokens only are noticed in time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from .rules import Choice, Item, Name, Text, Times, wrong

_WAYS = 256
_STEPS = 500_000  # of the whole check
_CHARACTER = re.compile(r"\\x(..)|\\u(.{4})|\\U(.{8})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
# What is yet to come: a place in a sequence, a repetition that was taken some times, or characters of a literal; and
# what comes behind it. Equal ones are the same object.
_Stack = tuple[object, int, "_Stack"] | None


def check_runs(rules: Mapping[str, Choice], runs: Mapping[str, int]) -> None:
    """Raises RequestError for a grammar that is too ambiguous for some repeated character."""
    reader = _Reader(rules)
    for name in _recursive(rules):
        for character, times in runs.items():
            if reader.ways(name, character, times) > _WAYS:
                raise wrong(f"the rule {name} can be read in ever more ways when {character!r} is repeated")


class _Reader:
    """Follows all ways of reading a text, as llama.cpp does."""

    def __init__(self, rules: Mapping[str, Choice]) -> None:
        self._rules = rules
        self._known: dict[tuple[int, int, int], _Stack] = {}
        self._steps = 0

    def ways(self, name: str, character: str, times: int) -> int:
        """The most ways, of a character that is repeated from the beginning of a rule on."""
        most, code = 0, ord(character)
        ways = self._ends([self._push(sequence, 0, None) for sequence in self._rules[name].sequences])
        for _ in range(times):
            if len(ways) > _WAYS:
                break
            ways = self._ends([self._behind(way) for way in ways if way is not None and _takes(way, code)])
            most = max(most, len(ways))
        return most

    def _push(self, item: object, at: int, below: _Stack) -> _Stack:
        key = id(item), at, id(below)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (item, at, below)
        return found

    def _behind(self, way: _Stack) -> _Stack:
        """What comes behind one character of a text."""
        assert way is not None
        item, at, below = way
        assert isinstance(item, Text)
        return self._push(item, at + 1, below) if at + 1 < len(_sets(item.text)) else below

    def _ends(self, todo: list[_Stack]) -> list[_Stack]:
        """All ways that go on with a character (or with nothing), from those that go on with rules."""
        seen: set[int] = set()
        found: list[_Stack] = []
        while todo and len(found) <= _WAYS:
            self._steps += 1
            if self._steps > _STEPS:
                raise wrong("it can be read in too many ways to be checked")
            way = todo.pop()
            if id(way) in seen:
                continue
            seen.add(id(way))
            if way is None or isinstance(way[0], Text):
                found.append(way)
            else:
                todo += self._next(*way)
        return found

    def _next(self, item: object, at: int, below: _Stack) -> Iterator[_Stack]:
        if isinstance(item, list):
            if at == len(item):
                yield below
                return
            rest = below if at + 1 == len(item) else self._push(item, at + 1, below)
            yield from self._begin(item[at], rest)
        elif isinstance(item, Times):
            if item.most is None or at < item.most:
                yield from self._begin(
                    item.item, self._push(item, min(at + 1, item.least) if item.most is None else at + 1, below)
                )
            if at >= item.least:
                yield below

    def _begin(self, item: Item, rest: _Stack) -> Iterator[_Stack]:
        if isinstance(item, Text):
            yield self._push(item, 0, rest) if item.size else rest
        elif isinstance(item, Times):
            yield self._push(item, 0, rest)
        else:
            choice = self._rules[item.name] if isinstance(item, Name) else item
            for sequence in choice.sequences:
                yield self._push(sequence, 0, rest)


def _recursive(rules: Mapping[str, Choice]) -> list[str]:
    """Rules that are used inside of themselves, and some between these: only with them do ways grow without end."""
    uses = {name: set(rule.names()) for name, rule in rules.items()}
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, others in uses.items():
        for other in others:
            users[other].add(name)
    left = set(rules)
    for forth, back in (
        (uses, users),
        (users, uses),
    ):  # what uses nothing that is left is in no circle; nor unused ones
        counts = {name: len(forth[name] & left) for name in left}
        todo = [name for name, count in counts.items() if count == 0]
        while todo:
            name = todo.pop()
            left.discard(name)
            for other in back[name] & left:
                counts[other] -= 1
                if counts[other] == 0:
                    todo.append(other)
    return sorted(left)


def _takes(way: tuple[object, int, _Stack], code: int) -> bool:
    item, at, _ = way
    assert isinstance(item, Text)
    negated, ranges = _sets(item.text)[at]
    return any(low <= code <= high for low, high in ranges) != negated


@lru_cache(maxsize=4096)
def _sets(text: str) -> tuple[tuple[bool, tuple[tuple[int, int], ...]], ...]:
    """The characters of a literal, each as a set, or the one set of a class. A token is any character."""
    if text[0] == '"':
        return tuple((False, ((code, code),)) for code, _ in _codes(text[1:-1]))
    if text[0] != "[":
        return ((True, ()),)
    negated = text[1] == "^"
    ranges: list[tuple[int, int]] = []
    codes = list(_codes(text[1 + negated : -1]))
    while codes:
        low = codes.pop(0)[0]
        if len(codes) > 1 and codes[0] == (ord("-"), False):
            del codes[0]
            ranges.append((low, codes.pop(0)[0]))
        else:
            ranges.append((low, low))
    return ((negated, tuple(ranges)),)


def _codes(text: str) -> Iterator[tuple[int, bool]]:
    """Code points, and whether they are written with a backslash."""
    for found in _CHARACTER.finditer(text):
        number = found[1] or found[2] or found[3]
        if number:
            try:
                yield int(number, 16), True
            except ValueError:
                raise wrong(f"{found[0]!r} is no character") from None
        elif found[4]:
            yield ord(_NAMED.get(found[4], found[4])), True
        else:
            yield ord(found[5]), False
