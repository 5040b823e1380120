"""What is checked of a grammar before llama.cpp reads it: its parser and its matcher end the process, or never end, for
some grammars that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .rules import Choice, Item, Name, Text, Times, rules_of, wrong
from .runs import check_runs

SIZE = 1 << 19  # characters
_ELEMENTS = 200_000  # of all rules, repetitions written out as llama.cpp does
_CHAIN = 5000  # rules that begin with one another: the check for left recursion calls itself for each
_WORK = 5_000_000  # calls of that check
_CHOICES = 256  # places where the next character may belong: llama.cpp tries every token at each


def check_grammar(text: str, runs: Mapping[str, int] | None = None) -> None:
    """Raises RequestError for GBNF that is wrong, too large, nested too deeply, or recursive on its left.

    `runs` are characters that a vocabulary has many times in one token, and how often: a grammar that can be read in
    ever more ways after each of them is refused, too.
    """
    if len(text) > SIZE:
        raise wrong(f"it has {len(text)} characters; {SIZE} are taken")
    if "\0" in text:
        raise wrong("it has a NUL character")
    rules = rules_of(text)
    if "root" not in rules:
        raise wrong("it has no rule named root")
    for rule in rules.values():
        missing = next((name for name in rule.names() if name not in rules), None)
        if missing is not None:
            raise wrong(f"the rule {missing} is not defined")
    if sum(rule.size for rule in rules.values()) > _ELEMENTS:
        raise wrong("its repetitions are too long when they are written out")
    nullable = _nullable(rules)
    costs: dict[str, _Cost] = {}
    for name in _leftmost_first(rules, nullable):
        costs[name] = _cost(rules[name], nullable, costs)
        if costs[name].chain > _CHAIN or costs[name].most > _CHOICES:
            raise wrong(f"the rule {name} has too many ways to begin")
    if sum(cost.work for cost in costs.values()) > _WORK:
        raise wrong("its rules begin with one another in too many ways")
    if runs:
        check_runs(rules, runs)


def _nullable(rules: dict[str, Choice]) -> set[str]:
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


def _may_be_empty(item: Item, nullable: set[str]) -> bool:
    if isinstance(item, Text):
        return item.size == 0
    if isinstance(item, Name):
        return item.name in nullable
    if isinstance(item, Times):
        return item.least == 0 or _may_be_empty(item.item, nullable)
    return any(all(_may_be_empty(one, nullable) for one in sequence) for sequence in item.sequences)


def _leftmost(item: Item, nullable: set[str]) -> Iterator[str]:
    """Names with which an item may begin."""
    if isinstance(item, Name):
        yield item.name
    elif isinstance(item, Times):
        if item.most is None and _may_be_empty(item.item, nullable):
            raise wrong("something that may be empty is repeated without end")
        yield from _leftmost(item.item, nullable)
    elif isinstance(item, Choice):
        for sequence in item.sequences:
            beginning = True
            for one in sequence:  # all of them are visited: an endless repetition is wrong anywhere
                names = list(_leftmost(one, nullable))
                if beginning:
                    yield from names
                beginning = beginning and _may_be_empty(one, nullable)


def _leftmost_first(rules: dict[str, Choice], nullable: set[str]) -> list[str]:
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
                    raise wrong(f"the rule {other} begins with itself; llama.cpp reads no left recursion")
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


def _cost(item: Item, nullable: set[str], known: dict[str, _Cost]) -> _Cost:
    if isinstance(item, Text):
        return _Cost(0, 0, 0, min(item.size, 1), 1)
    if isinstance(item, Name):
        # behind the beginning the rule may come later in the order: its own places are checked on its own
        one = known.get(item.name, _Cost(0, 0, 0, 1, 1))
        return _Cost(one.calls, one.chain, 0, one.places, one.places)
    if isinstance(item, Times):
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


def _cost_of_sequence(sequence: list[Item], nullable: set[str], known: dict[str, _Cost]) -> _Cost:
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
