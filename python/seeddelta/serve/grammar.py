"""What is checked of a grammar before llama.cpp reads it: its parser and its matcher end the process, or never end, for
some grammars that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..errors import RequestError

SIZE = 1 << 19  # characters
_DEPTH = 100  # brackets within brackets: the parser calls itself for each
_ELEMENTS = 200_000  # of all rules, repetitions written out as llama.cpp does
_CHAIN = 5000  # rules that begin with one another: the check for left recursion calls itself for each
_WORK = 5_000_000  # calls of that check
_CHOICES = 256  # places where the next character may belong: llama.cpp tries every token at each

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<text>"(?:[^"\\]|\\.)*"|\[\^?(?:[^\]\\]|\\.)*\]|!?<[^>]*>|\.)
    |(?P<rule>[a-zA-Z0-9-]+)[ \t]*::=|(?P<name>[a-zA-Z0-9-]+)
    |(?P<times>[*+?]|\{[ ]*[0-9]+[ ]*(?:,[ ]*[0-9]*[ ]*)?\})
    |(?P<mark>[()|])""",
    re.VERBOSE | re.DOTALL,
)
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def check_grammar(text: str) -> None:
    """Raises RequestError for GBNF that is wrong, too large, nested too deeply, or recursive on its left."""
    if len(text) > SIZE:
        raise _wrong(f"it has {len(text)} characters; {SIZE} are taken")
    if "\0" in text:
        raise _wrong("it has a NUL character")
    rules = _Parser(text).rules
    if "root" not in rules:
        raise _wrong("it has no rule named root")
    for rule in rules.values():
        missing = next((name for name in rule.names() if name not in rules), None)
        if missing is not None:
            raise _wrong(f"the rule {missing} is not defined")
    if sum(rule.size for rule in rules.values()) > _ELEMENTS:
        raise _wrong("its repetitions are too long when they are written out")
    nullable = _nullable(rules)
    costs: dict[str, _Cost] = {}
    for name in _leftmost_first(rules, nullable):
        costs[name] = _cost(rules[name], nullable, costs)
        if costs[name].chain > _CHAIN or costs[name].most > _CHOICES:
            raise _wrong(f"the rule {name} has too many ways to begin")
    if sum(cost.work for cost in costs.values()) > _WORK:
        raise _wrong("its rules begin with one another in too many ways")


def _wrong(what: str) -> RequestError:
    return RequestError(f"grammar: {what}")


@dataclass(frozen=True)
class _Text:
    """Characters of a literal, or one of a class."""

    size: int

    def names(self) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True)
class _Name:
    name: str
    size: int = 1

    def names(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True)
class _Choice:
    """Alternatives, each a sequence: a rule, or what stands in brackets."""

    sequences: list[list[_Item]]

    @cached_property
    def size(self) -> int:
        return 1 + sum(1 + sum(item.size for item in sequence) for sequence in self.sequences)

    def names(self) -> Iterator[str]:
        return (name for sequence in self.sequences for item in sequence for name in item.names())


@dataclass(frozen=True)
class _Times:
    item: _Item
    least: int
    most: int | None

    @cached_property
    def optional(self) -> int:
        """Rules that llama.cpp makes of it, each with a copy of the item."""
        return 1 if self.most is None else self.most - self.least

    @cached_property
    def size(self) -> int:
        return self.least * self.item.size + self.optional * (self.item.size + 3)

    def names(self) -> Iterator[str]:
        return self.item.names()


_Item = _Text | _Name | _Choice | _Times


class _Parser:
    """The rules of a grammar, by name."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, _Choice] = {}
        stack: list[_Choice] = []  # of open brackets; the first one is the rule
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _wrong(f"it cannot be read from {text[at : at + 20]!r} on")
            at, kind, value = found.end(), found.lastgroup, found[0]
            if kind == "rule":
                if len(stack) > 1:
                    raise _wrong(f"a bracket is open before the rule {found['rule']}")
                stack = [_Choice([[]])]
                self.rules[found["rule"]] = stack[0]
            elif kind == "space":
                continue
            elif not stack:
                raise _wrong(f"it does not begin with a rule: {value[:20]!r}")
            else:
                self._take(stack, kind, value)
        if len(stack) > 1:
            raise _wrong("a bracket is open at its end")

    def _take(self, stack: list[_Choice], kind: str | None, value: str) -> None:
        sequence = stack[-1].sequences[-1]
        if kind == "text":
            sequence.append(_Text(0 if value == '""' else len(value)))
        elif kind == "name":
            sequence.append(_Name(value))
        elif kind == "times":
            if not sequence:
                raise _wrong(f"there is nothing to repeat before {value!r}")
            sequence.append(_Times(sequence.pop(), *_times(value)))
        elif value == "|":
            stack[-1].sequences.append([])
        elif value == "(":
            if len(stack) > _DEPTH:
                raise _wrong(f"its brackets are nested more than {_DEPTH} deep")
            group = _Choice([[]])
            sequence.append(group)
            stack.append(group)
        elif len(stack) == 1:
            raise _wrong("a bracket is closed that was not opened")
        else:
            stack.pop()


def _times(text: str) -> tuple[int, int | None]:
    if text in _TIMES:
        return _TIMES[text]
    numbers = text[1:-1].replace(" ", "").split(",")
    if any(len(number) > 4 for number in numbers):
        raise _wrong(f"{text[:20]} repeats too often")
    least = int(numbers[0])
    most = least if len(numbers) == 1 else int(numbers[1]) if numbers[1] else None
    if most is not None and most < least:
        raise _wrong(f"{text} repeats less than its least")
    return least, most


def _nullable(rules: dict[str, _Choice]) -> set[str]:
    """Rules that the empty text follows."""
    found: set[str] = set()
    users: dict[str, set[str]] = {}
    for name, rule in rules.items():
        for used in rule.names():
            users.setdefault(used, set()).add(name)
    todo = set(rules)
    while todo:
        name = todo.pop()
        if name not in found and _may_be_empty(rules[name], found):
            found.add(name)
            todo |= users.get(name, set())
    return found


def _may_be_empty(item: _Item, nullable: set[str]) -> bool:
    if isinstance(item, _Text):
        return item.size == 0
    if isinstance(item, _Name):
        return item.name in nullable
    if isinstance(item, _Times):
        return item.least == 0 or _may_be_empty(item.item, nullable)
    return any(all(_may_be_empty(one, nullable) for one in sequence) for sequence in item.sequences)


def _leftmost(item: _Item, nullable: set[str]) -> Iterator[str]:
    """Names with which an item may begin."""
    if isinstance(item, _Name):
        yield item.name
    elif isinstance(item, _Times):
        if item.most is None and _may_be_empty(item.item, nullable):
            raise _wrong("something that may be empty is repeated without end")
        yield from _leftmost(item.item, nullable)
    elif isinstance(item, _Choice):
        for sequence in item.sequences:
            beginning = True
            for one in sequence:  # all of them are visited: an endless repetition is wrong anywhere
                names = list(_leftmost(one, nullable))
                if beginning:
                    yield from names
                beginning = beginning and _may_be_empty(one, nullable)


def _leftmost_first(rules: dict[str, _Choice], nullable: set[str]) -> list[str]:
    """All rules, those first with which others begin. Raises RequestError when one begins with itself."""
    begins = {name: list(dict.fromkeys(_leftmost(rule, nullable))) for name, rule in rules.items()}
    done: dict[str, bool] = {}  # False while it is being visited
    order: list[str] = []
    for start in rules:
        stack = [start]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                if not done[name]:
                    done[name] = True
                    order.append(name)
                continue
            done[name] = False
            for other in begins[name]:
                if done.get(other) is False:
                    raise _wrong(f"the rule {other} begins with itself; llama.cpp reads no left recursion")
                if other not in done:
                    stack.append(other)
    return order


@dataclass(frozen=True)
class _Cost:
    """Calls of the check for left recursion from an item, their depth, and all such work of the item's own rules; the
    places where its first character may belong, and the most for any character inside."""

    calls: int
    chain: int
    work: int
    places: int
    most: int


def _cost(item: _Item, nullable: set[str], known: dict[str, _Cost]) -> _Cost:
    if isinstance(item, _Text):
        return _Cost(0, 0, 0, min(item.size, 1), 1)
    if isinstance(item, _Name):
        # behind the beginning the rule may come later in the order: its own places are checked on its own
        one = known.get(item.name, _Cost(0, 0, 0, 1, 1))
        return _Cost(one.calls, one.chain, 0, one.places, one.places)
    if isinstance(item, _Times):
        one = _cost(item.item, nullable, known)
        empty = _may_be_empty(item.item, nullable)
        copies = item.least + item.optional if empty else 1
        chain = one.chain + (item.optional if empty else 1)
        work = one.work + item.optional * copies * (one.calls + 1)
        return _Cost(copies * (one.calls + 1), chain, work, copies * one.places, max(one.most, copies * one.places))
    costs = [_cost_of_sequence(sequence, nullable, known) for sequence in item.sequences]
    calls = 1 + sum(cost.calls for cost in costs)
    places = sum(cost.places for cost in costs)
    return _Cost(
        calls,
        1 + max(cost.chain for cost in costs),
        calls + sum(cost.work for cost in costs),
        places,
        max(places, *(cost.most for cost in costs)),
    )


def _cost_of_sequence(sequence: list[_Item], nullable: set[str], known: dict[str, _Cost]) -> _Cost:
    """From behind: each item, and what follows it where it may be empty."""
    calls = chain = work = places = most = 0
    for item in reversed(sequence):
        cost = _cost(item, nullable, known)
        on = _may_be_empty(item, nullable)
        calls = cost.calls + on * calls
        chain = max(cost.chain, on * chain)
        places = cost.places + on * places
        most = max(most, cost.most, places)
        work += cost.work
    return _Cost(calls, chain, work, places, most)
