"""JSON schemas as grammars (GBNF): a reply that follows the grammar is JSON that the schema takes.

A grammar may say less than its schema (members in the schema's order, and only those that it names), never more. A
keyword that it cannot say is refused by its name; llama-server, which takes more of them, runs under `seeddelta exec`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RequestError
from . import ranges

DEPTH = 64  # of values within values
_TIMES = 2000  # of a repetition: llama.cpp takes a longer one for an endless one
_REPEATED = 20_000  # of all repetitions: llama.cpp writes them out
_SIZE = 1 << 17  # characters of a schema
_WAYS = 256  # places where the next character may belong: llama.cpp tries every token at each
# These change nothing of what is valid.
_ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
    "$comment", "$defs", "definitions", "discriminator", "contentMediaType", "contentEncoding", "strict",
}  # fmt: skip
# The types, and the keywords of each.
_TYPES: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"}, "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"}, "number": ranges.KEYWORDS, "integer": ranges.KEYWORDS, "boolean": set(),
    "null": set(),
}  # fmt: skip
_SPACE = "ws"  # more of it is no better JSON, and models may not find its end
# Rules that every grammar has; those of types have the type's name.
_SHARED = {
    _SPACE: '" "?',
    "char": r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF\U00110000-\UFFFFFFFF] | "\\" escape',
    "escape": r'["\\/bfnrt] | "u" ( [0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} )',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "number": 'integer ( "." [0-9]{1,16} )? ( [eE] [+-]? [0-9]{1,2} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "member": f'string {_SPACE} ":" {_SPACE} value {_SPACE}',
    "object": f'"{{" {_SPACE} ( member ( "," {_SPACE} member )* )? "}}"',
    "array": f'"[" {_SPACE} ( value {_SPACE} ( "," {_SPACE} value {_SPACE} )* )? "]"',
    "value": "object | array | string | number | boolean | null",
} | ranges.RULES


def json_grammar(schema: Any) -> str:
    """GBNF of JSON that a schema takes. Raises RequestError for a schema that cannot be said."""
    try:
        if len(_dumped(schema)) > _SIZE:
            raise RequestError(f"it has more than {_SIZE} characters")
        converter = _Converter(schema)
        root = converter.visit(schema)
    except RequestError as error:
        raise RequestError(f"schema: {error}") from None
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        raise RequestError(f"schema: a keyword has a value that it cannot have ({error})") from error
    rules = {"root": root} | converter.rules | _SHARED
    return "".join(f"{name} ::= {body}\n" for name, body in rules.items())


class _Converter:
    """Rules of one schema, by name."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # what a rule takes -> its name
        self._members_of: dict[str, int] = {}  # rule of an object -> members
        self._arrays = {"array"}
        self._repeated = self._depth = 0
        self.rules: dict[str, str] = {}

    def visit(self, schema: Any) -> str:
        """An expression for a schema: the name of a rule, or a literal."""
        self._depth += 1
        if self._depth > DEPTH:
            raise RequestError(f"it is nested more than {DEPTH} deep")
        forms = self._forms(schema, set())
        self._depth -= 1
        if "value" in forms:
            return "value"
        if not forms:
            raise RequestError(f"{_short(schema)} takes nothing")
        if sum(form in self._arrays for form in forms) > 1:  # n brackets could be read in 2^n ways
            raise RequestError("anyOf of two arrays is not supported")
        if sum(1 + self._members_of.get(form, 0) for form in forms) > _WAYS:
            raise RequestError(f"it leaves more than {_WAYS} ways to go on")
        return forms[0] if len(forms) == 1 else self._rule(" | ".join(forms))

    def _forms(self, schema: Any, seen: set[str]) -> list[str]:
        """Expressions of what a schema takes. None is a choice itself, so that no rule begins with itself.

        `seen` are the references so far: one that comes again adds nothing.
        """
        if schema is True:
            return ["value"]
        if not isinstance(schema, Mapping):
            raise RequestError("false takes nothing" if schema is False else "a schema is an object, true or false")
        words = {name: schema[name] for name in schema if name not in _ANNOTATIONS and not str(name).startswith("x-")}
        if not words:
            return ["value"]
        if set(words) == {"$ref"}:
            target, name = self._resolved(words["$ref"]), words["$ref"]
            if name in seen:
                return []
            seen.add(name)
            return self._forms(target, seen)
        if "discriminator" in schema and "oneOf" in words:  # the member that it names tells the choices apart
            words["anyOf"] = words.pop("oneOf")
        if set(words) == {"anyOf"} or (set(words) == {"allOf"} and len(words["allOf"]) == 1):
            (parts,) = words.values()
            return list(dict.fromkeys(form for part in parts for form in self._forms(part, seen)))
        if "enum" in words or "const" in words:
            return _values(words)
        kinds = words.pop("type", None)
        kinds = [kinds] if isinstance(kinds, str) else _implied(words) if kinds is None else kinds
        unknown = sorted(set(words) - set().union(*(_TYPES[kind] for kind in kinds if kind in _TYPES)))
        if not kinds or any(kind not in _TYPES for kind in kinds):
            raise RequestError(f"type {_short(kinds)} is not known; there are {', '.join(_TYPES)}")
        if unknown:
            raise RequestError(
                f"{unknown[0]} is not supported here; llama-server under seeddelta exec takes more of schemas"
            )
        return [self._typed(kind, words) for kind in dict.fromkeys(kinds)]

    def _typed(self, kind: str, words: Mapping[str, Any]) -> str:
        own = {name: words[name] for name in sorted(_TYPES[kind]) if words.get(name) is not None}
        if not own:
            return kind
        key = f"{kind} {_dumped(own)}"
        name = self._names.get(key)
        if name is None:  # it has the name before its body is made: schemas may contain themselves
            name = self._names[key] = f"r{len(self._names) + 1}"
            if kind == "array":
                self._arrays.add(name)
            elif kind == "object":
                self._members_of[name] = len(own.get("properties", ()))
            forms = {"object": self._object, "array": self._array, "string": self._string}
            self.rules[name] = forms[kind](own) if kind in forms else ranges.number_between(own, kind == "integer")
        return name

    def _rule(self, body: str) -> str:
        """The name of the rule with a body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"r{len(self._names) + 1}"
            self.rules[name] = body
        return name

    def _resolved(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise RequestError(f"$ref {_short(reference)} is not within the schema; give #/$defs/…")
        found = self._root
        for part in reference.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, ValueError, IndexError, TypeError):
                raise RequestError(f"$ref {_short(reference)} leads nowhere") from None
        return found

    def _object(self, words: Mapping[str, Any]) -> str:
        """Members in their order; those that are not required may be left out. Others come only where none is named."""
        members, required = words.get("properties", {}), words.get("required", [])
        more = words.get("additionalProperties", "properties" not in words)
        if not isinstance(members, Mapping) or not isinstance(required, list):
            raise RequestError("properties is an object, and required a list of names")
        lacking = [one for one in required if one not in members]
        if lacking and words.get("additionalProperties") is False:
            raise RequestError(f"required {_short(lacking[0])} is none of the properties")
        members = {**members, **{str(one): more or True for one in lacking}}
        refused = [one for one, schema in members.items() if schema is False]
        if set(refused) & set(required):
            raise RequestError(f"required {_short(refused[0])} takes nothing")
        pairs = [
            (f'{_literal(_dumped(one))} {_SPACE} ":" {_SPACE} {self.visit(schema)} {_SPACE}', one in required)
            for one, schema in members.items()
            if one not in refused
        ]
        if not members and more is not False:
            pair = f'string {_SPACE} ":" {_SPACE} {self.visit(more)} {_SPACE}'
            pairs = [(f'{pair} ( "," {_SPACE} {pair} )*', False)]
        return f'"{{" {_SPACE} {self._members(pairs)} "}}"'

    def _members(self, pairs: list[tuple[str, bool]]) -> str:
        """Commas stand between the members that are there. Those behind each one are a rule of their own."""
        rest, starts = '""', ['""']
        for pair, required in reversed(pairs):
            first = pair if rest == '""' else f"{pair} {rest}"
            first = self._rule(first)
            starts = [first] if required else [first, *starts]
            step = f'"," {_SPACE} {pair} {rest}' if required else f'( "," {_SPACE} {pair} )? {rest}'
            rest = self._rule(step)
        return f"( {' | '.join(starts)} )"

    def _array(self, words: Mapping[str, Any]) -> str:
        least, most = self._times(words, "minItems", "maxItems")
        if words.get("items", True) is False or most == 0:
            if least:
                raise RequestError("minItems of an array that has none")
            return f'"[" {_SPACE} "]"'
        item = self.visit(words.get("items", True))
        more = f'( "," {_SPACE} {item} {_SPACE} ){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {_SPACE} ( {item} {_SPACE} {more} ){"" if least else "?"} "]"'

    def _string(self, words: Mapping[str, Any]) -> str:
        least, most = self._times(words, "minLength", "maxLength")
        return rf'"\"" char{{{least},{"" if most is None else most}}} "\""'

    def _times(self, words: Mapping[str, Any], first: str, second: str) -> tuple[int, int | None]:
        """How often something comes at least, and at most; None is without end."""
        for name in (first, second):
            value = words.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise RequestError(f"{name} is a whole number from 0 on")
        least, most = words.get(first, 0), words.get(second)
        if least > _TIMES or (most is not None and least > most):
            raise RequestError(f"{first} {_short(least)} is more than {_TIMES if least > _TIMES else second}")
        self._repeated += least if most is None else min(most, _TIMES)
        if self._repeated > _REPEATED:
            raise RequestError(f"its repetitions add up to more than {_REPEATED}")
        return least, None if most is None else min(most, _TIMES)


def _values(words: Mapping[str, Any]) -> list[str]:
    """The literals of enum and const, with a type beside them."""
    others = sorted(set(words) - {"enum", "const", "type"})
    if others:
        raise RequestError(f"{others[0]} beside enum or const is not supported")
    values = words["enum"] if "enum" in words else [words["const"]]
    if not isinstance(values, list):
        raise RequestError("enum is a list of values")
    if "const" in words:
        values = [value for value in values if _dumped(value) == _dumped(words["const"])]
    kinds = words.get("type", list(_TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return list(dict.fromkeys(_literal(_dumped(value)) for value in values if set(_types_of(value)) & set(kinds)))


def _types_of(value: Any) -> list[str]:
    if value is None or isinstance(value, bool):
        return ["null" if value is None else "boolean"]
    if isinstance(value, (int, float)):
        return ["number", "integer"] if isinstance(value, int) or value.is_integer() else ["number"]
    return ["string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"]


def _implied(words: Iterable[str]) -> list[str]:
    """The type that a schema's keywords are about; all where it has none."""
    found = [kind for kind, known in _TYPES.items() if set(words) & known]
    return found[:1] or list(_TYPES)


def _literal(text: str) -> str:
    """A text as it is."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(one: str) -> str:
    code = ord(one)
    if 0x20 <= code < 0x7F and one not in '"\\':
        return one
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"


def _dumped(value: Any) -> str:
    """JSON as a model writes it: characters as they are, but for halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "".join(f"\\u{ord(one):04x}" if 0xD800 <= ord(one) <= 0xDFFF else one for one in text)


def _short(value: Any) -> str:
    """A value of a client for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
