"""The rules of a grammar in GBNF, read as llama.cpp reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..errors import RequestError

_DEPTH = 100  # brackets within brackets: llama.cpp's parser calls itself for each
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<text>"(?:[^"\\]|\\.)*"|\[\^?(?:[^\]\\]|\\.)*\]|!?<[^>]*>|\.)
    |(?P<rule>[a-zA-Z0-9-]+)[ \t]*::=|(?P<name>[a-zA-Z0-9-]+)
    |(?P<times>[*+?]|\{[ ]*[0-9]+[ ]*(?:,[ ]*[0-9]*[ ]*)?\})
    |(?P<mark>[()|])""",
    re.VERBOSE | re.DOTALL,
)
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def rules_of(text: str) -> dict[str, Choice]:
    """The rules, by name. Raises RequestError for what is no GBNF."""
    return _Parser(text).rules


def wrong(what: str) -> RequestError:
    """The exception for a grammar."""
    return RequestError(f"grammar: {what}")


@dataclass(frozen=True)
class Text:
    """A literal, or a class of characters, as it stands in the grammar; its size is 0 where it is empty."""

    text: str

    @property
    def size(self) -> int:
        return 0 if self.text in ('""', "[]", "[^]") else len(self.text)

    def names(self) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True)
class Name:
    name: str
    size: int = 1

    def names(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True)
class Choice:
    """Alternatives, each a sequence: a rule, or what stands in brackets."""

    sequences: list[list[Item]]

    @cached_property
    def size(self) -> int:
        return 1 + sum(1 + sum(item.size for item in sequence) for sequence in self.sequences)

    def names(self) -> Iterator[str]:
        return (name for sequence in self.sequences for item in sequence for name in item.names())


@dataclass(frozen=True)
class Times:
    item: Item
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


Item = Text | Name | Choice | Times


class _Parser:
    """The rules of a grammar, by name."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Choice] = {}
        stack: list[Choice] = []  # of open brackets; the first one is the rule
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise wrong(f"it cannot be read from {text[at : at + 20]!r} on")
            at, kind, value = found.end(), found.lastgroup, found[0]
            if kind == "rule":
                if len(stack) > 1:
                    raise wrong(f"a bracket is open before the rule {found['rule']}")
                stack = [Choice([[]])]
                self.rules[found["rule"]] = stack[0]
            elif kind == "space":
                continue
            elif not stack:
                raise wrong(f"it does not begin with a rule: {value[:20]!r}")
            else:
                self._take(stack, kind, value)
        if len(stack) > 1:
            raise wrong("a bracket is open at its end")

    def _take(self, stack: list[Choice], kind: str | None, value: str) -> None:
        sequence = stack[-1].sequences[-1]
        if kind == "text":
            sequence.append(Text(value))
        elif kind == "name":
            sequence.append(Name(value))
        elif kind == "times":
            if not sequence:
                raise wrong(f"there is nothing to repeat before {value!r}")
            sequence.append(Times(sequence.pop(), *_times(value)))
        elif value == "|":
            stack[-1].sequences.append([])
        elif value == "(":
            if len(stack) > _DEPTH:
                raise wrong(f"its brackets are nested more than {_DEPTH} deep")
            group = Choice([[]])
            sequence.append(group)
            stack.append(group)
        elif len(stack) == 1:
            raise wrong("a bracket is closed that was not opened")
        else:
            stack.pop()


def _times(text: str) -> tuple[int, int | None]:
    if text in _TIMES:
        return _TIMES[text]
    numbers = text[1:-1].replace(" ", "").split(",")
    if any(len(number) > 4 for number in numbers):
        raise wrong(f"{text[:20]} repeats too often")
    least = int(numbers[0])
    most = least if len(numbers) == 1 else int(numbers[1]) if numbers[1] else None
    if most is not None and most < least:
        raise wrong(f"{text} repeats less than its least")
    return least, most
