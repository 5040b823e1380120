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

from llama_cpp import LlamaGrammar
from seeddelta.serve.schema import Json, json_grammar, replace_converter


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
    (
        obj({"a": {"type": "integer"}, "ab": {"type": "null"}}, additionalProperties={"type": "boolean"}),
        [{}, {"a": 1, "c": True}, {"abc": True}, {"": False, "b": True}, {"ab": None, "é": True}],
        [{"b": 1}],
    ),
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
    (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        [[1, "x"]],
        [[1], ["x", 1]],
    ),
    ({"type": "array"}, [[], [1, "x", []]], [{}]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "string", "pattern": r"^\d{2}-\w+$"}, ["12-abc_9"], ["1-a", "12-é", "12-"]),
    ({"type": "string", "pattern": '^(a|b"c)[^x-z\\]]*$'}, ["a", 'b"cqq', 'a"\\'], ["axx", "a]"]),
    ({"type": "string", "pattern": "^\\S+\\s\\D\\W$"}, ["ab 	-"], ["ab12"]),
    ({"type": "string", "pattern": "^foo"}, ["foo", "foobar"], ["fo", "xfoo"]),
    ({"type": "string", "pattern": "😀+\\.\\/[é-ü]$"}, ["😀😀./é"], ["😀/é"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a😀c"], ["a", "abcd"]),
    ({"type": "string", "maxLength": 10000}, ["", "a" * 50], []),
    ({"type": "string", "format": "date"}, ["2024-02-28", "2023-12-31"], ["2024-13-01", "2023-02-31"]),
    (
        {"type": "string", "format": "date-time"},
        ["2024-02-28T10:11:12Z", "2023-12-31T00:00:00.5+01:00"],
        ["2024-02-28"],
    ),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"]),
    ({"type": "string", "format": "email"}, ["a.b@c.de"], ["a"]),
    ({"type": "string", "format": "ipv4"}, ["1.2.3.255"], ["1.2.3.256"]),
    ({"type": "string", "format": "ipv6"}, ["1:2:3:4:5:6:7:8"], ["1"]),
    ({"type": "string", "format": "duration"}, ["P1D", "PT5M"], ["P"]),
    ({"type": "string", "format": "hostname"}, ["a.bc"], ["-"]),
    ({"type": "integer", "minimum": 3, "maximum": 127}, [3, 9, 10, 99, 100, 127], [2, 128, 0, 1000, -5]),
    ({"type": "integer", "minimum": -12, "maximum": 7}, [-12, -1, 0, 7, -9], [-13, 8, 12]),
    ({"type": "integer", "exclusiveMinimum": 0}, [1, 10, 99999], [0, -1]),
    ({"type": "integer", "maximum": -5}, [-5, -6, -100], [-4, 0, 5]),
    ({"type": "integer", "minimum": 95}, [95, 99, 100, 123456], [94, 9]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.25], [1.5, -0.5, 2]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5, 0.001], [0, 1]),
    ({"type": "number", "minimum": -1.5, "maximum": 2.5}, [-1, 0, 2, 1.5, -0.5], [3, -2, 2.6]),
    ({"type": "number", "exclusiveMinimum": -1}, [0, -0.5, 5.5], [-1, -1.5]),
    ({"type": ["string", "null"]}, ["x", None], [1]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "x"], [None]),
    (
        {
            "oneOf": [
                obj({"k": {"const": "a"}}, required=["k"]),
                obj({"k": {"const": "b"}, "n": {"type": "integer"}}, required=["k"]),
            ]
        },
        [{"k": "a"}, {"k": "b", "n": 1}],
        [{"k": "c"}],
    ),
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
    (
        {"allOf": [obj({"a": {"type": "integer"}}, required=["a"]), obj({"b": {"type": "string"}}, required=["b"])]},
        [{"a": 1, "b": "x"}],
        [{"a": 1}],
    ),
    ({"$ref": "#/$defs/x~1y", "description": "d", "$defs": {"x/y": {"type": "boolean"}}}, [True], [1]),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    ({"enum": [1, None, True, "x"]}, [1, None, True], ["y"]),
    ({"type": "number"}, [1, 1.5, -3e10], ["x"]),
    ({"type": "boolean"}, [True], [1]),
    ({"type": "null"}, [None], [1]),
    ({"type": "integer"}, [0, -5], [1.5]),
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
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": "(a"},
    {"type": "string", "pattern": "a\\bc"},
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
    {"type": "string", "pattern": 5},
    {"type": "string", "format": []},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"$ref": 5},
    {"$ref": "#/a", "a": {"$ref": "#/a"}},
    {"allOf": [{"$ref": "#"}]},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "string", "pattern": "[^\\d\\D]"},
    {"required": ["x"], "properties": {}, "additionalProperties": False},
    {"items": [5]},
    {"prefixItems": 5},
    {"type": "string", "pattern": "(a{100}){100}{100}"},
    {"type": "string", "pattern": "((a*)*)*"},
    {"oneOf": [5, 6]},
    {"oneOf": [{"required": 5}, {"type": "integer"}]},
    {"properties": {"a": 5}},
    {"oneOf": [{"properties": 5, "required": ["a"]}, {"properties": {"a": {"const": 1}}, "required": ["a"]}]},
    {"oneOf": [{"type": [[]]}, {"type": "integer"}]},
    {"type": "string", "pattern": "a" * 70000},
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
    grammar = json_grammar(Json(schema))
    for value in values:
        assert walker.takes(grammar, compact(value)), value
        assert walker.takes(grammar, json.dumps(value, ensure_ascii=False)), value
    for value in others:
        assert not walker.takes(grammar, compact(value)), value


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_a_grammar_writes_is_valid(walker: Walker, number: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = CASES[number][0]
    grammar = json_grammar(Json(schema))
    draw = random.Random(number)
    texts = [text for text in (walker.draw(grammar, draw) for _ in range(12)) if text is not None]
    texts = [text for text in texts if "\ufffd" not in text]  # bytes that are no UTF-8, which no model writes
    assert len(texts) > 3
    for text in texts:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


def test_a_value_of_many_parts(walker: Walker) -> None:
    value = {"a\\": ["😀", None, 1.5, {"\n": "\x7f"}]}
    assert walker.takes(json_grammar(Json({"const": value})), json.dumps(value, ensure_ascii=False))
    half = json.loads('"a\\ud83d"')  # from a file of `run`: it cannot be written but with an escape
    assert walker.takes(json_grammar(Json({"const": half})), '"a\\ud83d"')


def test_chat_formats_use_this_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaGrammar, "from_json_schema", LlamaGrammar.from_json_schema)  # back again afterwards
    replace_converter()
    schema = {"type": "array", "items": {"enum": ["a\\b"]}, "maxItems": 10**9}
    assert LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)._grammar == json_grammar(Json(schema))
    with pytest.raises(RequestError, match="minItems"):
        LlamaGrammar.from_json_schema('{"type": "array", "minItems": 1000000000}')


def test_texts_around_values(walker: Walker) -> None:
    grammar = json_grammar(
        Json({"type": "null"}, "<a>", "</a>"), Json({"$ref": "#/$defs/x", "$defs": {"x": {"const": 5}}})
    )
    assert [walker.takes(grammar, text) for text in ("<a>null</a>", "5", "null", "<a>5</a>")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_cannot_be_said(number: int) -> None:
    with pytest.raises(RequestError, match=r"^schema: "):
        json_grammar(Json(BAD[number]))


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "string", "format": "iri"}, "format 'iri'"),
        ({"type": "string", "pattern": "(?=a)b"}, r"pattern '\(\?=a\)b': assert"),
        ({"not": {}}, "not is"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
    ],
)
def test_what_is_not_supported_is_named(schema: Any, name: str) -> None:
    with pytest.raises(RequestError, match=name):
        json_grammar(Json(schema))


def test_schemas_that_are_deep_or_large() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    with pytest.raises(RequestError, match="nested"):
        json_grammar(Json(deep))
    names = [f"name {i}" for i in range(1000)]
    members = {name: {"type": "string"} for name in names}
    assert len(json_grammar(Json(obj(members, required=names)))) < 200_000
    assert len(json_grammar(Json({"enum": names}))) < 50_000
    with pytest.raises(RequestError, match="too many ways"):  # each could be the next one
        json_grammar(Json(obj(members)))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_any_schema(walker: Walker, schema: Any, seed: int) -> None:
    """Whatever is taken, what its grammar writes is valid."""
    jsonschema = pytest.importorskip("jsonschema")
    try:
        grammar = json_grammar(Json(schema))
        jsonschema.Draft202012Validator.check_schema(schema)
    except (RequestError, jsonschema.SchemaError):
        return
    draw = random.Random(seed)
    for text in [walker.draw(grammar, draw) for _ in range(3)]:
        if text is not None and "\ufffd" not in text:
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
