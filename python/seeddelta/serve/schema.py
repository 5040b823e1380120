"""JSON schemas as grammars: a reply that follows the grammar is JSON that the schema takes.

A grammar may say less than its schema (no escapes that are not needed, members in the schema's order, no members that
the schema does not name), never more. A keyword that it cannot say is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar

from ..errors import RequestError
from . import gbnf
from .forms import SHARED, array_form, object_form, string_form
from .grammar import check_grammar
from .keywords import (
    ANNOTATIONS,
    DEPTH,
    KEYWORDS,
    OF_TYPES,
    TYPES,
    constants,
    dumped,
    implied_types,
    is_of,
    relevant,
    short,
)
from .ranges import number_forms

_RULES = 20_000
_VARIANTS = 300  # each is compared with each


@dataclass(frozen=True)
class Json:
    """JSON that a schema takes, between two texts."""

    schema: Any
    before: str = ""
    after: str = ""


def json_grammar(*forms: Json) -> str:
    """GBNF of a reply in one of several forms. Raises RequestError for a schema that cannot be said."""
    rules: dict[str, str] = {}
    roots = []
    for at, form in enumerate(forms):
        try:
            converter = _Converter(form.schema, f"r{at}-")
            value = converter.visit(form.schema)
        except RequestError as error:
            raise RequestError(f"schema: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise RequestError(f"schema: a keyword has a value that it cannot have ({error})") from error
        rules |= converter.rules
        around = [gbnf.literal(form.before), value, gbnf.literal(form.after)]
        roots.append(" ".join(part for part in around if part != '""'))
    rules = {"root": " | ".join(roots)} | rules | SHARED
    text = "".join(f"{name} ::= {body}\n" for name, body in rules.items())
    try:
        check_grammar(text)
    except RequestError as error:
        raise RequestError(f"schema: it cannot be made a grammar ({error})") from None
    return text


def replace_converter() -> None:
    """Have llama-cpp-python's chat formats use `json_grammar`, for the schemas of tools that clients send: its own
    converter writes repetitions out, as often as a schema says. For the whole process."""

    def from_json_schema(json_schema: str, verbose: bool = True) -> LlamaGrammar:
        return LlamaGrammar.from_string(json_grammar(Json(json.loads(json_schema))), verbose=verbose)

    LlamaGrammar.from_json_schema = from_json_schema


class _Converter:
    """Rules of one schema, in the order of their making."""

    def __init__(self, root: Any, prefix: str) -> None:
        self._root, self._prefix = root, prefix
        self._names: dict[str, str] = {}  # a rule's text or a reference -> its name
        self._depth = 0
        self.rules: dict[str, str] = {}

    def visit(self, schema: Any) -> str:
        """An expression for a schema: a name, or a literal."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping):
            raise RequestError("false takes nothing" if schema is False else "a schema is an object, true or false")
        self._depth += 1
        if self._depth > DEPTH:
            raise RequestError(f"it is nested more than {DEPTH} deep")
        found = self._visit(schema)
        self._depth -= 1
        return found

    def _visit(self, schema: Mapping[str, Any]) -> str:
        schema = relevant(schema)
        if "$ref" in schema and len(schema) == 1:
            return self._reference(schema["$ref"])
        if "$ref" in schema:  # words beside it count, too
            schema = dict(schema)
            schema["allOf"] = [{"$ref": schema.pop("$ref")}, *schema.get("allOf", [])]
        if "allOf" in schema:
            return self.visit(self._merged(schema))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._union(name, dict(schema))
        if "enum" in schema or "const" in schema:
            return self._values(schema)
        types = schema.get("type", implied_types(schema))
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or not types or any(kind not in TYPES for kind in types):
            raise RequestError(f"type {short(types)} is not known; there are {', '.join(TYPES)}")
        unknown = sorted(set(schema) - OF_TYPES - {"type"})
        if unknown:
            raise RequestError(f"{unknown[0]} is not supported")
        return self._any_of([self._typed(kind, schema) for kind in dict.fromkeys(types)])

    def rule(self, body: str) -> str:
        """The name of a rule with such a body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self._new_name()
            self.rules[name] = body
        return name

    def _new_name(self) -> str:
        if len(self._names) >= _RULES:
            raise RequestError("it is too large")
        return f"{self._prefix}{len(self._names) + 1}"

    def _any_of(self, forms: list[str]) -> str:
        forms = list(dict.fromkeys(forms))
        return forms[0] if len(forms) == 1 else self.rule(" | ".join(forms))

    def _reference(self, reference: Any) -> str:
        """The rule of a reference, which may be on its way: schemas may contain themselves."""
        key = f"$ref {reference}"
        if key not in self._names:
            self._names[key] = name = self._new_name()
            self.rules[name] = self.visit(self._resolved(reference))
        return self._names[key]

    def _resolved(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise RequestError(f"$ref {short(reference)} is not within the schema; give #/$defs/…")
        found = self._root
        for part in reference.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, ValueError, IndexError, TypeError):
                raise RequestError(f"$ref {short(reference)} leads nowhere") from None
        return found

    def _target(self, schema: Any) -> Any:
        """What a schema that is only a reference stands for; any other as it is."""
        for _ in range(DEPTH):
            if not isinstance(schema, Mapping) or set(schema) - ANNOTATIONS != {"$ref"}:
                return schema
            schema = self._resolved(schema["$ref"])
        raise RequestError(f"$ref {short(schema['$ref'])} refers to itself")

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema with the parts of its allOf written into it."""
        parts = schema["allOf"]
        if not isinstance(parts, list):
            raise RequestError("allOf is a list of schemas")
        result = {name: value for name, value in schema.items() if name != "allOf"}
        for part in parts:
            part = self._target(part)
            if part is True:
                continue
            if not isinstance(part, Mapping):
                raise RequestError("a part of allOf is no schema")
            if "allOf" in part or "$ref" in part:
                raise RequestError("allOf within allOf is not supported")
            for name, value in part.items():
                if name in ANNOTATIONS or result.get(name, value) == value:
                    result[name] = value
                elif name == "properties" and not set(result[name]) & set(value):
                    result[name] = {**result[name], **value}
                elif name == "required":
                    result[name] = [*result[name], *value]
                else:
                    raise RequestError(f"allOf: two parts have {name}, which is not supported")
        if result.get("additionalProperties") is False and len(parts) > 1:
            raise RequestError("allOf with additionalProperties is not supported")
        return result

    def _union(self, word: str, schema: dict[str, Any]) -> str:
        variants = schema.pop(word)
        kind = schema.pop("type", None)
        if schema:
            raise RequestError(f"{word} beside {min(schema)} is not supported")
        if not isinstance(variants, list) or not variants:
            raise RequestError(f"{word} is a list of schemas")
        if kind is not None:
            variants = [self._of_type(kind, {} if one is True else one) for one in variants]
        if word == "oneOf" and len(variants) > _VARIANTS:
            raise RequestError(f"oneOf of more than {_VARIANTS} is not supported")
        if word == "oneOf" and not self._distinct(variants):
            raise RequestError("oneOf is not supported where more than one may fit; give anyOf")
        return self._any_of([self.visit(one) for one in variants])

    def _of_type(self, kind: Any, variant: Any) -> Any:
        """A variant with the type that stands beside all of them."""
        if not isinstance(variant, Mapping):
            return variant
        if variant.get("type", kind) != kind:
            raise RequestError(f"type {short(kind)} beside variants of other types is not supported")
        return {**variant, "type": kind}

    def _distinct(self, variants: list[Any]) -> bool:
        """Whether no value fits two variants: they differ in type, in their values, or in a member's."""
        kinds = [self._possible(one) for one in variants]
        return all(
            not first["types"] & second["types"]
            or any(not values & second["members"].get(name, values) for name, values in first["members"].items())
            for at, first in enumerate(kinds)
            for second in kinds[at + 1 :]
        )

    def _possible(self, schema: Any) -> dict[str, Any]:
        schema = self._target(schema)
        if not isinstance(schema, Mapping):
            return {"types": set(TYPES), "members": {}}
        kinds = schema.get("type", list(TYPES))
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if "number" in kinds:
            kinds.add("integer")
        members = {"": constants(schema)}
        for name in schema.get("required", []):
            members[f".{name}"] = constants(schema.get("properties", {}).get(name, {}))
        return {"types": kinds, "members": {name: values for name, values in members.items() if values is not None}}

    def _values(self, schema: Mapping[str, Any]) -> str:
        """enum and const, with a type beside them."""
        others = sorted(set(schema) - {"enum", "const", "type"})
        if others:
            raise RequestError(f"{others[0]} beside enum or const is not supported")
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list):
            raise RequestError("enum is a list of values")
        if "const" in schema:
            values = [value for value in values if dumped(value) == dumped(schema["const"])]
        kinds = schema.get("type", list(TYPES))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        texts = [dumped(value) for value in values if any(is_of(value, kind) for kind in kinds)]
        if not texts:
            raise RequestError("enum has no value of its type")
        return self._literals(sorted(set(texts)))

    def _literals(self, texts: list[str], depth: int = 0) -> str:
        """One of some texts in order. Those that begin alike share it: every other beginning costs llama.cpp time."""
        forms = []
        for _, group in groupby(texts, key=lambda text: text[:1]):
            same = list(group)
            if len(same) == 1 or depth == DEPTH:
                forms += [gbnf.literal(text) for text in same]
                continue
            alike = 1
            while same[0][: alike + 1] == same[-1][: alike + 1]:  # what the first and the last one share, all do
                alike += 1
            rest = self._literals([text[alike:] for text in same], depth + 1)
            forms.append(f"{gbnf.literal(same[0][:alike])} {rest}")
        return self._any_of(forms)

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        words = {name: schema[name] for name in KEYWORDS.get(kind, set()) if schema.get(name) is not None}
        if not words:
            return kind
        if kind in ("number", "integer"):
            return self.rule(number_forms(words, kind))
        return {"object": object_form, "array": array_form, "string": string_form}[kind](self, words)
