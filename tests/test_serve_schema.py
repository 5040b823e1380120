"""JSON schemas as grammars: llama.cpp's matcher takes the values that fit, and nothing that does not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grammar_walk import Walker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeddelta.errors import RequestError
from serve_strategies import SCHEMAS

pytest.importorskip("llama_cpp")

from seeddelta.serve.schema import json_grammar


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


# schema, values that it takes and that are written, and values that it does not take
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (
        {"enum": ['a"b', "a\nb", "a\tb", "a\\b", "😀", "\x00\x7f", "]", "-", "é", "^[x]", "\u2028"]},
        ['a"b', "a\nb", "a\tb", "a\\b", "😀", "\x00\x7f", "]", "-", "é", "^[x]", "\u2028"],
        ["x"],
    ),
    (obj({'k"\n😀': {"type": "boolean"}}, required=['k"\n😀']), [{'k"\n😀': True}], [{}]),
    (
        obj({"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}, required=["b"]),
        [{"b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": None}, {"b": "", "c": None}],
        [{"a": 1}, {"c": None, "b": ""}, {"b": "x", "d": 1}],
    ),
    (obj({"a": {"type": "integer"}, "b": {"type": "string"}}), [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}], []),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "y": 2}], [{"x": "y"}]),
    ({"type": "object"}, [{}, {"x": [1, {"y": None}]}], [1]),
    ({"type": "object", "required": ["x"]}, [{"x": 3}], [{}]),
    ({}, [1, "x", None, [], {}], []),
    (True, [1], []),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        [[1, 2], [1, 2, 3]],
        [[1], [1, 2, 3, 4], []],
    ),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [[], [1]], [[1, 2]]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, [[1], [1] * 5], [[]]),
    ({"type": "array"}, [[], [1, "x", []]], [{}]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a😀c"], ["a", "abcd"]),
    ({"type": "string", "maxLength": 10000}, ["", "a" * 50], []),
    ({"type": ["string", "null"]}, ["x", None], [1]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "x"], [None]),
    (
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": obj(
                    {"v": {"type": "integer"}, "l": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
                    required=["v", "l"],
                )
            },
        },
        [{"v": 1, "l": {"v": 2, "l": None}}],
        [{"v": 1}],
    ),
    (obj({"c": {"type": "array", "items": {"$ref": "#"}}}), [{}, {"c": [{}, {"c": []}]}], [{"c": 1}]),
    ({"$ref": "#/$defs/x~1y", "description": "d", "$defs": {"x/y": {"type": "boolean"}}}, [True], [1]),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    ({"enum": [1, None, True, "x"]}, [1, None, True], ["y"]),
    ({"type": "number"}, [1, 1.5, -3e10], ["x"]),
    (
        {
            "oneOf": [
                obj({"k": {"const": "a"}}, required=["k"]),
                obj({"k": {"const": "b"}, "n": {"type": "integer"}}, required=["k"]),
            ],
            "discriminator": {"propertyName": "k"},
        },
        [{"k": "a"}, {"k": "b", "n": 1}],
        [{"k": "c"}, {"k": "a", "n": 1}],
    ),
    ({"type": "boolean"}, [True], [1]),
    ({"type": "null"}, [None], [1]),
    ({"type": "integer"}, [0, -5], [1.5]),
    ({"type": "integer", "minimum": 3, "maximum": 127}, [3, 9, 10, 99, 100, 127], [2, 128, 0, 1000, -5]),
    ({"type": "integer", "minimum": -12, "maximum": 7}, [-12, -1, 0, 7, -9], [-13, 8, 12]),
    ({"type": "integer", "exclusiveMinimum": 0}, [1, 10, 99999], [0, -1]),
    ({"type": "integer", "exclusiveMinimum": 0, "minimum": 5}, [5, 10], [4, 0]),
    ({"type": "integer", "maximum": -5}, [-5, -6, -100], [-4, 0, 5]),
    ({"type": "integer", "minimum": 95}, [95, 99, 100, 123456], [94, 9]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.25], [1.5, -0.5, 2]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5, 0.001], [0, 1]),
    ({"type": "number", "minimum": -1.5, "maximum": 2.5}, [-1, 0, 2, 1.5, -0.5], [3, -2, 2.6]),
    ({"type": "number", "exclusiveMinimum": -1}, [0, -0.5, 5.5], [-1, -1.5]),
    ({"type": ["integer", "null"], "minimum": 1}, [1, None], [0]),
    (
        obj(
            {"a": {"type": "string", "description": "x", "title": "t", "default": "q"}},
            required=["a"],
            title="T",
            additionalProperties=False,
        ),
        [{"a": "x"}],
        [],
    ),
    (
        obj({"a": {"type": "integer"}}, additionalProperties={"type": "boolean"}),
        [{}, {"a": 1}],
        [{"b": 1}, {"b": True}],
    ),
    ({"allOf": [{"$ref": "#/$defs/t"}], "title": "t", "$defs": {"t": {"type": "null"}}}, [None], [1]),
    (
        {"anyOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/t"}, {"type": "null"}], "$defs": {"t": {"enum": [1, [2]]}}},
        [1, [2], None],
        [2],
    ),
]
BAD: list[Any] = [
    False,
    "x",
    None,
    5,
    {"$ref": "https://example.invalid/x.json"},
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
    {"type": "array", "uniqueItems": True},
    {"type": "integer", "multipleOf": 3},
    {"not": {}},
    {"if": {}},
    {"type": "string", "format": "foo"},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "object", "patternProperties": {"a": {}}},
    {"type": "object", "minProperties": 1},
    {"nullable": True, "type": "string"},
    {"type": "wat"},
    {"type": []},
    {"type": {}},
    {"enum": []},
    {"enum": "x"},
    {"properties": []},
    {"required": 5, "type": "object"},
    {"anyOf": []},
    {"anyOf": {}},
    {"allOf": 5},
    {"type": "integer", "minimum": "x"},
    {"type": "integer", "minimum": 1e999},
    {"type": "string", "minLength": -1},
    {"type": "string", "minLength": 1e400},
    {"type": "string", "format": []},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"$ref": 5},
    {"$ref": "#/a", "a": {"$ref": "#/a"}},
    {"allOf": [{"$ref": "#"}]},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"required": ["x"], "properties": {}, "additionalProperties": False},
    {"items": [5]},
    {"prefixItems": 5},
    {"oneOf": [5, 6]},
    {"oneOf": [{"required": 5}, {"type": "integer"}]},
    {"properties": {"a": 5}},
    {"oneOf": [{"type": [[]]}, {"type": "integer"}]},
    {"allOf": [{"$ref": []}]},
]


@pytest.fixture(scope="module")
def walker(smollm2_quantized: Path) -> Iterator[Walker]:
    walker = Walker(smollm2_quantized)
    yield walker
    walker.close()


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_values_of_a_schema(walker: Walker, number: int) -> None:
    schema, values, others = CASES[number]
    grammar = json_grammar(schema)
    for value in values:
        assert walker.takes(grammar, compact(value)), value
        assert walker.takes(grammar, json.dumps(value, ensure_ascii=False)), value
    for value in others:
        assert not walker.takes(grammar, compact(value)), value


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_a_grammar_writes_is_valid(walker: Walker, number: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = CASES[number][0]
    grammar = json_grammar(schema)
    draw = random.Random(number)
    texts = [text for text in (walker.draw(grammar, draw) for _ in range(12)) if text is not None]
    texts = [text for text in texts if "\ufffd" not in text]  # bytes that are no UTF-8, which no model writes
    assert len(texts) > 3
    for text in texts:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


def test_a_value_of_many_parts(walker: Walker) -> None:
    value = {"a\\": ["😀", None, 1.5, {"\n": "\x7f"}]}
    assert walker.takes(json_grammar({"const": value}), json.dumps(value, ensure_ascii=False))
    half = json.loads('"a\\ud83d"')  # from a file of `run`: it cannot be written but with an escape
    assert walker.takes(json_grammar({"const": half}), '"a\\ud83d"')


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_cannot_be_said(number: int) -> None:
    with pytest.raises(RequestError, match=r"^schema: "):
        json_grammar(BAD[number])


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "string", "format": "date"}, "format is"),
        ({"type": "string", "pattern": "^a+$"}, "pattern is"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "oneOf is"),
        ({"anyOf": [{"items": {"type": "null"}}, {"items": {"$ref": "#"}}]}, "two arrays"),
        ({"not": {}}, "not is"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
    ],
)
def test_what_is_not_supported_is_named(schema: Any, name: str) -> None:
    with pytest.raises(RequestError, match=name):
        json_grammar(schema)


def test_schemas_that_are_deep_or_large() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    with pytest.raises(RequestError, match="nested"):
        json_grammar(deep)
    names = [f"name {i}" for i in range(200)]
    members = {name: {"type": "string"} for name in names}
    assert len(json_grammar(obj(members, required=names))) < 40_000
    assert len(json_grammar(obj(members))) < 60_000
    assert len(json_grammar({"enum": names})) < 5_000
    for wide in ({"enum": list(range(300))}, {"anyOf": [obj(members), obj(members, required=names)]}):
        with pytest.raises(RequestError, match="256 ways"):  # each could be the next one
            json_grammar(wide)
    with pytest.raises(RequestError, match="20000"):
        json_grammar(obj({name: {"minLength": i, "maxLength": 1000} for i, name in enumerate(names)}))
    # choices of choices, each of which is visited once
    choices: dict[str, Any] = {"c0": {"enum": [0]}}
    for i in range(60):
        choices[f"c{i + 1}"] = {"anyOf": [{"$ref": f"#/$defs/c{i}"}, {"$ref": f"#/$defs/c{i}"}, {"const": i}]}
    assert len(json_grammar({"$ref": "#/$defs/c60", "$defs": choices})) < 3_000


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_any_schema(walker: Walker, schema: Any, seed: int) -> None:
    """Whatever is taken, what its grammar writes is valid."""
    jsonschema = pytest.importorskip("jsonschema")
    try:
        grammar = json_grammar(schema)
        jsonschema.Draft202012Validator.check_schema(schema)
    except (RequestError, jsonschema.SchemaError):
        return
    draw = random.Random(seed)
    for text in [walker.draw(grammar, draw) for _ in range(3)]:
        if text is not None and "\ufffd" not in text:
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
