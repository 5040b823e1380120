"""Requests for a fuzzer: bodies of a server's own OpenAPI schema, and what goes wrong with them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

ODD = st.one_of(
    st.sampled_from(
        [
            None, True, False, 0, -1, 1, 2**31, -(2**31) - 1, 2**63, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, "", "a",
            "\0", "😀", "\ud83d", "\x7f\u2028", "x" * 5000, "9" * 400, [], {}, [[]], [None], [0], ["a", 1], {"": None},
            {"type": "text"}, {"role": "user"}, {"$ref": "#"}, "tiny", "bert", "auto", "required", "json_object",
        ]
    ),
    st.recursive(
        st.none() | st.integers(-3, 600) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=4), max_leaves=6
    ),
    st.integers(5, 2000).map(lambda depth: json.loads("[" * min(depth, 900) + "]" * min(depth, 900))),
)  # fmt: skip
_VALUE = st.none() | st.booleans() | st.integers(-5, 300) | st.floats(allow_nan=False) | st.text(max_size=6)
_BOUND = st.integers(-200, 200) | st.integers(-40, 40).map(lambda quarter: quarter / 4)
_PATTERNS = [
    "^\\d+$", "[^\\W]{2,9}", "(a|b)*c", "((a*)*)*", "(?=a)", "[", "a{1000}", ".{2000}x", "\\p{L}", "^\\S\\s\\D$",
    '"[^"]+\\\\',
]  # fmt: skip
_OF_TYPES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "string": {"pattern": st.sampled_from(_PATTERNS)},
    "integer": {"minimum": _BOUND, "maximum": _BOUND, "exclusiveMaximum": _BOUND},
    "number": {"minimum": _BOUND, "maximum": _BOUND, "exclusiveMinimum": _BOUND},
    "array": {"minItems": st.integers(0, 3), "maxItems": st.integers(0, 10**9), "uniqueItems": st.just(False)},
    "object": {
        "required": st.lists(st.sampled_from(["a", "b", "😀"]), max_size=2),
        "additionalProperties": st.booleans(),
    },
    "boolean": {},
    "null": {"title": st.text(max_size=3)},
    "king": {"not": st.none()},
}
_LEAF = st.one_of(
    *[st.fixed_dictionaries({"type": st.just(kind)}, optional=words) for kind, words in _OF_TYPES.items()],
    st.builds(dict, type=st.just("string"), format=st.sampled_from(["date", "uuid", "email", "ipv4", "king"])),
    st.builds(dict, type=st.just("string"), minLength=st.integers(0, 9), maxLength=st.integers(0, 3000)),
    st.fixed_dictionaries({"enum": st.lists(_VALUE, max_size=4)}),
    st.fixed_dictionaries({"const": _VALUE}),
    st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "x", "#/items"])}),
    st.fixed_dictionaries({}, optional={word: one for words in _OF_TYPES.values() for word, one in words.items()}),
    st.builds(dict, type=st.just(["string", "integer", "null"]), minimum=_BOUND),
)  # fmt: skip


def _with(leaf: dict[str, Any], word: str, found: dict[str, Any]) -> dict[str, Any]:
    """A schema with others inside."""
    if word in ("properties", "$defs"):
        return leaf | {word: found}
    inner = list(found.values())
    return leaf | {word: inner if word != "items" or len(inner) != 1 else inner[0]}


_OUTER = st.sampled_from([{}, {}, {"type": "object"}, {"type": "array"}, {"additionalProperties": True}]) | _LEAF
SCHEMAS = st.recursive(
    _LEAF,
    lambda inner: st.builds(
        _with,
        _OUTER,
        st.sampled_from(["properties", "$defs", "anyOf", "oneOf", "allOf", "prefixItems", "items"]),
        st.dictionaries(st.sampled_from(["a", "b", "\"\\\n", "😀"]), inner, max_size=3),
    ),
    max_leaves=5,
)  # fmt: skip


def values(schema: dict[str, Any], parts: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Values of a schema, most of them right. Fields that have languages of their own get texts of these."""
    if name in ("schema", "parameters"):
        return SCHEMAS
    if name == "model":
        return st.sampled_from(["tiny"] * 5 + ["bert", "other"])
    if "$ref" in schema:
        return st.deferred(lambda: values(parts[schema["$ref"].split("/")[-1]], parts))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([values(one, parts, name) for one in schema[word]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        fields = {field: values(one, parts, field) for field, one in schema["properties"].items()}
        needed = set(schema.get("required", []))
        return st.fixed_dictionaries(
            {field: one for field, one in fields.items() if field in needed},
            optional={field: one for field, one in fields.items() if field not in needed},
        )
    if kind == "object":
        return st.dictionaries(st.integers(-2, 600).map(str) | st.text(max_size=3), st.integers(-101, 101), max_size=3)
    if kind == "array":
        items = values(schema.get("items", {}), parts)
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=4)
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -3), schema.get("maximum", 20)
        whole = st.integers(int(low), int(min(high, low + 600)))
        return whole if kind == "integer" else whole | st.floats(low, min(high, 100), allow_nan=False)
    if kind == "string":
        return st.sampled_from(["hi", "the city", "", "naïve 😀", "type"]) | st.text(max_size=12)
    return {"boolean": st.booleans(), "null": st.none()}.get(str(kind), ODD)


@st.composite
def bodies(draw: st.DrawFn, schema: dict[str, Any], parts: dict[str, Any]) -> bytes:
    """A body: right, with odd values at some places, or with odd bytes."""
    body = draw(values(schema, parts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 4]))):
        body = _spoiled(draw, body)
    data = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(data)))
        data = (
            data[:at]
            + draw(st.sampled_from([b"", b"\xff", b"\0", b"NaN", b"1e999", b"[" * 3000, b"\xed\xa0\x80"]))
            + data[at:]
        )
        data = data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data
    return data


def _spoiled(draw: st.DrawFn, value: Any) -> Any:
    """A value with something odd somewhere inside, or in its place."""
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 3)):
        place = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        changed: Any = value.copy()
        if draw(st.integers(0, 5)) == 0:
            del changed[place]
        else:
            changed[place] = _spoiled(draw, value[place])
        return changed
    return draw(ODD)
