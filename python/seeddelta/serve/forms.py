"""Objects, lists and texts of JSON schemas, as GBNF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import RequestError
from . import gbnf
from .keywords import DEPTH, count, dumped, refuse, short

# Of these a format says nothing about characters.
_NO_FORMS = {"password", "binary", "byte", "path", "file-path", "directory-path", "int32", "int64", "float", "double"}
_DATE = r"[1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{1,4}}"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(\d{1,4}[YMW]|\d{1,4}D(T\d{1,4}[HMS])?|T\d{1,4}[HMS]|T\d{1,4}H\d{1,2}M)",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "uuid4": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "email": rf"[a-zA-Z0-9_]+([.+-][a-zA-Z0-9_]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": rf"https?://{_HOST}(/[a-zA-Z0-9._~-]*)*",
}
SPACE = "ws"  # more of it is no better JSON, and models may not find its end
# Rules that every grammar has.
SHARED = {
    SPACE: '" "?',
    "char": r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF\U00110000-\UFFFFFFFF] | "\\" escape',
    "escape": r'["\\/bfnrt] | "u" ( [0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} )',
    "string": r'"\"" char* "\""',
    "whole": '"0" | [1-9] [0-9]{0,15}',
    "integer": '"-"? whole',
    "fraction": '"." [0-9]{1,16}',
    "some-fraction": '"." "0"{0,8} [1-9] [0-9]{0,8}',
    "number": '"-"? whole fraction? ( [eE] [+-]? [0-9]{1,2} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "member": f'string {SPACE} ":" {SPACE} value {SPACE}',
    "more-members": f'"," {SPACE} member',
    "object": f'"{{" {SPACE} ( member more-members* )? "}}"',
    "more-values": f'"," {SPACE} value {SPACE}',
    "array": f'"[" {SPACE} ( value {SPACE} more-values* )? "]"',
    "value": "object | array | string | number | boolean | null",
}


class Converter(Protocol):
    """What makes rules of the schemas inside of another one."""

    def visit(self, schema: Any) -> str:
        """An expression for a schema: a name, or a literal."""

    def rule(self, body: str) -> str:
        """The name of a rule with such a body."""


def object_form(converter: Converter, words: dict[str, Any]) -> str:
    """An object: members in their order, then those that it does not name."""
    refuse(words, {"properties", "required", "additionalProperties"})
    members, more = words.get("properties", {}), words.get("additionalProperties", "properties" not in words)
    required = words.get("required", [])
    if not isinstance(members, Mapping) or not isinstance(required, list):
        raise RequestError("properties is an object, and required a list of names")
    lacking = [name for name in required if name not in members]
    if lacking and (more is False and "additionalProperties" in words):
        raise RequestError(f"required {short(lacking[0])} is none of the properties")
    members = {**members, **{str(name): True for name in lacking}}
    pairs = []
    for name, schema in members.items():
        if schema is False:  # a member that may not be there
            if name in required:
                raise RequestError(f"required {short(name)} takes nothing")
            continue
        key = gbnf.literal(dumped(name))
        pair = converter.rule(f'{key} {SPACE} ":" {SPACE} {converter.visit(schema)} {SPACE}')
        pairs.append((pair, name in required))
    if more is not False:
        key = converter.rule(r'"\"" ' + _other_than(converter, list(members)) + r' "\""') if members else "string"
        pair = converter.rule(f'{key} {SPACE} ":" {SPACE} {converter.visit(more)} {SPACE}')
        following = converter.rule(f'"," {SPACE} {pair}')
        pairs.append((converter.rule(f"{pair} {following}*"), False))
    return converter.rule(f'"{{" {SPACE} {_members(converter, pairs)} "}}"')


def _members(converter: Converter, pairs: list[tuple[str, bool]]) -> str:
    """Members in their order; those that are not required may be left out, and commas stand between those there."""
    rest, starts = '""', ['""']
    for pair, required in reversed(pairs):
        first = pair if rest == '""' else f"{pair} {rest}"
        starts = [first] if required else [first, *starts]
        comma = f'"," {SPACE} {pair}'
        step = comma if required else f"( {comma} )?"
        rest = converter.rule(step if rest == '""' else f"{step} {rest}")
    return starts[0] if len(starts) == 1 else converter.rule(" | ".join(starts))


def _other_than(converter: Converter, names: list[str]) -> str:
    """The characters of a key that is none of the names."""
    plain = gbnf.string_characters(gbnf.complement([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
    rest = converter.rule(f"{converter.rule(plain)}*")

    def after(beginning: str, ends: list[str]) -> str:
        following: dict[str, list[str]] = {}
        for end in ends:
            if end:
                following.setdefault(end[0], []).append(end[1:])
        taken = [(ord(one), ord(one)) for one in following] + [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]
        forms = [f"{gbnf.string_characters(gbnf.complement(taken))} {rest}"]
        forms += [
            f"{gbnf.literal(one)} {after(beginning + one, more)}"
            for one, more in following.items()
            if gbnf.minus([(ord(one), ord(one))], taken[len(following) :])
        ]
        if "" not in ends:
            forms.append('""')
        return converter.rule(" | ".join(forms))

    if any(len(name) > DEPTH for name in names):
        raise RequestError(f"additionalProperties beside a name of more than {DEPTH} characters is not supported")
    return after("", names)


def array_form(converter: Converter, words: dict[str, Any]) -> str:
    """A list."""
    if words.get("uniqueItems") is False:
        del words["uniqueItems"]
    refuse(words, {"items", "prefixItems", "minItems", "maxItems"})
    least, most = count(words, "minItems", 0), count(words, "maxItems", None)
    first, items = words.get("prefixItems", []), words.get("items", True)
    if isinstance(items, list):  # as it was before draft 2020-12
        first, items = items, True
    if not isinstance(first, list):
        raise RequestError("prefixItems is a list of schemas")
    if first:
        if not least <= len(first) <= (len(first) if most is None else most):
            raise RequestError("prefixItems with another number of items is not supported")
        body = f' "," {SPACE} '.join(f"{converter.visit(one)} {SPACE}" for one in first)
        return converter.rule(f'"[" {SPACE} {body} "]"')
    if items is False or most == 0:
        if least:
            raise RequestError("minItems of an array that has none")
        return converter.rule(f'"[" {SPACE} "]"')
    item = converter.visit(items)
    more = gbnf.repeated(
        converter.rule(f'"," {SPACE} {item} {SPACE}'), max(least - 1, 0), None if most is None else most - 1
    )
    body = f"{item} {SPACE} {more}"
    return converter.rule(f'"[" {SPACE} {body if least else f"( {body} )?"} "]"')


def string_form(converter: Converter, words: dict[str, Any]) -> str:
    """A text."""
    form = words.get("format")
    if isinstance(form, str) and form in _NO_FORMS:
        del words["format"]
    least, most = count(words, "minLength", 0), count(words, "maxLength", None)
    if "pattern" in words or "format" in words:
        if len(words) > 1:
            raise RequestError(f"{' and '.join(sorted(words))} together are not supported")
        if "format" in words and (not isinstance(form, str) or form not in _FORMATS):
            raise RequestError(f"format {short(form)} is not supported; there are {', '.join(_FORMATS)}")
        pattern = words["pattern"] if "pattern" in words else f"^{_FORMATS[str(form)]}$"
        if not isinstance(pattern, str):
            raise RequestError("pattern is a text")
        return converter.rule(r'"\"" ' + gbnf.string_pattern(pattern, converter.rule) + r' "\""')
    if not words:
        return "string"
    return converter.rule(r'"\"" ' + gbnf.repeated("char", least, most) + r' "\""')
