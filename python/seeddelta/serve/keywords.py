"""Keywords of JSON schemas and their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import RequestError
from .gbnf import MOST_TIMES

DEPTH = 64  # of values within values
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# These change nothing of what is valid.
ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
    "$comment", "$defs", "definitions", "discriminator", "contentMediaType", "contentEncoding", "strict",
}  # fmt: skip
# What each type has; of other types it says nothing.
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
               "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "dependencies"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
              "additionalItems", "unevaluatedItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}  # fmt: skip
KEYWORDS["integer"] = KEYWORDS["number"] | {"format"}
OF_TYPES = set().union(*KEYWORDS.values())


def relevant(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a schema that say what is valid."""
    return {name: value for name, value in schema.items() if name not in ANNOTATIONS and not name.startswith("x-")}


def implied_types(schema: Mapping[str, Any]) -> list[str]:
    """The type that a schema's keywords are about; all where it has none."""
    found = [kind for kind in ("object", "array", "string", "number") if set(schema) & KEYWORDS[kind]]
    return found[:1] or ["object", "array", "string", "number", "boolean", "null"]


def constants(schema: Any) -> set[str] | None:
    """The values that enum or const take, as JSON; None without them."""
    if not isinstance(schema, Mapping) or not ("const" in schema or isinstance(schema.get("enum"), list)):
        return None
    return {dumped(value) for value in ([schema["const"]] if "const" in schema else schema["enum"])}


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type."""
    if isinstance(value, bool) or value is None:
        return bool(kind == ("null" if value is None else "boolean"))
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    types: dict[Any, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "number": (int, float)}
    return isinstance(value, types.get(kind, ()))


def count(words: Mapping[str, Any], name: str, none: Any) -> Any:
    """A number of characters or items; `none` where it is not given."""
    value = words.get(name, none)
    if value is none:
        return none
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"{name} is a number from 0 on")
    if name.startswith("min"):
        if value > MOST_TIMES:
            raise RequestError(f"{name} {short(value)} is more than {MOST_TIMES}")
        most = words.get("max" + name[3:])
        if isinstance(most, (int, float)) and most < value:
            raise RequestError(f"{name} is more than max{name[3:]}")
        return value
    return min(value, MOST_TIMES)


def bound(
    words: Mapping[str, Any], closed: str, open_: str, stricter: Callable[[float, float], float], none: float
) -> tuple[float, bool]:
    """The stricter of two bounds, and whether it is excluded."""
    for name in (closed, open_):
        value = words.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
            raise RequestError(f"{name} {short(value)} is no number that is taken")
    one, other = words.get(closed, none), words.get(open_, none)
    return stricter(one, other), stricter(one, other) == other and open_ in words


def refuse(words: Mapping[str, Any], known: set[str]) -> None:
    """Raises RequestError for a keyword that is not known."""
    unknown = sorted(set(words) - known)
    if unknown:
        raise RequestError(f"{unknown[0]} is not supported")


def dumped(value: Any) -> str:
    """JSON as a model writes it: characters as they are, but for halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if 0xD800 <= ord(one) <= 0xDFFF else one for one in text)


def short(value: Any) -> str:
    """A value of a client for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
