"""Schemas from clients: what can be enforced is kept, the rest refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.chat import schema
from barrel_inference.errors import SchemaError


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "contains",
        "uniqueItems",
        "unevaluatedProperties",
        "propertyNames",
        "$dynamicRef",
    ],
)
def test_what_cannot_be_enforced_is_named(keyword: str) -> None:
    beside = {"if": {"then": {}}, "unevaluatedProperties": {"allOf": [{}]}}.get(keyword, {})
    value: Any = {"format": "email"} if keyword == "propertyNames" else {"x": ["y"]}
    with pytest.raises(SchemaError, match=f"'{keyword.replace('$', chr(92) + '$')}'.*#/properties/a") as caught:
        schema.usable({"properties": {"a": {keyword: value, **beside}}})
    assert caught.value.details == {"keyword": keyword}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, {}),
        ({"title": "T", "description": "D", "type": "string"}, {"type": "string"}),
        ({"properties": {"title": {"title": "t"}}}, {"properties": {"title": {}}}),
        ({"uniqueItems": False, "type": "array"}, {"type": "array"}),
        ({"unevaluatedProperties": True}, {}),
        ({"type": "string", "format": "binary"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"maximum": 2**63 - 1, "minimum": -(2**63)}, {"maximum": 2**53 - 1, "minimum": -(2**53) + 1}),
        ({"propertyNames": {"type": "string"}, "type": "object"}, {"type": "object"}),
        (
            {"propertyNames": {"minLength": 2.0, "maxLength": 3}},
            {"patternProperties": {"^(?s:.){2,3}$": True}, "type": "object", "additionalProperties": False},
        ),
        ({"maxLength": 3.0, "then": {}, "minContains": 2, "contentSchema": {}}, {"maxLength": 3}),
        ({"unevaluatedProperties": False, "properties": {}}, {"additionalProperties": False, "properties": {}}),
        ({"unevaluatedItems": False, "items": {}}, {"items": {}}),
        (
            {"dependentRequired": {"a": ["b"]}, "allOf": [{}]},
            {"allOf": [{}, {"anyOf": [{"properties": {"a": False}}, {"required": ["a", "b"]}]}]},
        ),
        (
            {"dependencies": {"a": {"minProperties": 2}}},
            {
                "allOf": [
                    {"anyOf": [{"properties": {"a": False}}, {"required": ["a"], "allOf": [{"minProperties": 2}]}]}
                ]
            },
        ),
        (
            {"propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
            {"patternProperties": {"^a": {"type": "integer"}}, "type": "object", "additionalProperties": False},
        ),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
            {
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "type": "object",
                "additionalProperties": False,
            },
        ),
    ],
)
def test_rewritten(given: Any, expected: Any) -> None:
    assert schema.usable(given) == expected


def test_a_reference_to_the_root_becomes_a_definition() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    found = schema.usable(tree)
    assert found["$ref"] == "#/$defs/the_root"
    assert found["$defs"]["the_root"]["properties"]["children"]["items"] == {"$ref": "#/$defs/the_root"}


CIRCLES: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
]


@pytest.mark.parametrize("circle", CIRCLES)
def test_a_reference_that_leads_back_to_itself_is_named(circle: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=r"reference '#.*' leads back to itself"):
        schema.usable(circle)


def test_a_tool_is_taken_without_its_references_that_lead_back_to_themselves() -> None:
    circle = CIRCLES[2]
    found = schema.arguments({"properties": {"a": circle, "b": {"$ref": "#/$defs/a"}}, "$defs": circle["$defs"]})
    assert found["properties"] == {"a": {"$defs": {"a": {"allOf": [{}]}, "b": {}}}, "b": {}}


def test_a_long_way_is_no_circle() -> None:
    ways = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": "#/$defs/3000"}]} for n in range(3000)}
    way = {"items": {"$ref": "#/$defs/0"}, "$defs": ways | {"3000": {"type": "null"}}}
    assert schema.usable(way) == way
    with pytest.raises(SchemaError, match=r"reference '#.*' leads back to itself"):
        schema.usable(way | {"$defs": ways | {"3000": {"$ref": "#/$defs/2999"}}})


def test_references_that_fan_out_take_no_time() -> None:
    fan = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(14)}
    assert schema.usable({"$ref": "#/$defs/0", "$defs": {**fan, "14": {"type": "null"}}})["$ref"] == "#/$defs/0"


def test_references_into_the_schema_survive_when_it_stands_inside_another() -> None:
    """zod-to-json-schema writes what it sees for the second time in this way."""
    place = {"type": "object", "properties": {"x": {"type": "integer"}}}
    found = schema.arguments({"$id": "http://x/y", "properties": {"from": place, "to": {"$ref": "#/properties/from"}}})
    assert found["properties"]["to"] == {"$ref": "#/$defs/the_root_properties_from"}
    assert found["$defs"] == {"the_root_properties_from": place | {"additionalProperties": False}}
    assert "$id" not in found


def test_limits() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(SchemaError, match="nested"):
        schema.usable(deep)
    with pytest.raises(SchemaError, match="longer"):
        schema.usable({"enum": ["x" * 100] * 20_000})
    with pytest.raises(SchemaError, match="false"):
        schema.usable(False)


def test_arguments_of_tools_are_closed_objects() -> None:
    assert schema.arguments({"properties": {"a": {}}})["additionalProperties"] is False
    assert schema.arguments({})["additionalProperties"] is True
    assert schema.arguments({"additionalProperties": {"type": "string"}})["additionalProperties"] == {"type": "string"}


@pytest.mark.parametrize(
    ("hard", "left"),
    [
        ({"pattern": "^(?=a).*$"}, {}),
        ({"pattern": r"\bword\b"}, {}),
        ({"pattern": r"(a)\1"}, {}),
        ({"pattern": "("}, {}),
        ({"pattern": r"^\p{L}{1,3}$"}, {"pattern": r"^\p{L}{1,3}$"}),
        ({"pattern": r"^\d{3}\{x\}$"}, {"pattern": r"^\d{3}\{x\}$"}),
        ({"format": "uri-reference"}, {}),
        ({"format": "date"}, {"format": "date"}),
        ({"patternProperties": {"^a": {}, "b$": {}}}, {}),
        ({"patternProperties": {"^a": {}}}, {"patternProperties": {"^a": {}}}),
        ({"$ref": "#/$defs/nowhere"}, {}),
        ({"$ref": "http://elsewhere/x"}, {}),
    ],
)
def test_of_a_tools_schema_what_the_engine_does_not_know_is_left_out(hard: Any, left: Any) -> None:
    assert schema.arguments({"properties": {"a": hard}})["properties"] == {"a": left}
    assert schema.arguments({"properties": {"a": hard}}, strict=True)["properties"]["a"] == hard


def test_what_is_required_without_being_listed_may_be_anything() -> None:
    assert schema.arguments({"properties": {"a": {}}, "required": ["b"]})["properties"] == {"a": {}, "b": {}}


def test_tools_bring_keywords_that_cannot_be_enforced() -> None:
    loose = {"properties": {"a": {"type": "array", "uniqueItems": True, "items": {"not": {}}}}}
    assert schema.arguments(loose)["properties"] == {"a": {"type": "array", "items": {}}}
    with pytest.raises(SchemaError, match="uniqueItems"):
        schema.arguments(loose, strict=True)


WORDS = (
    "allOf anyOf items properties $ref $defs propertyNames dependentRequired dependencies required unevaluatedItems "
    "unevaluatedProperties if then minContains maxLength enum x-own"
)
KEYWORDS = st.sampled_from(WORDS.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(["#", "a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYWORDS, JSON, max_size=4))
def test_whatever_comes_is_rewritten_or_refused(given_schema: dict[str, Any]) -> None:
    for made in (schema.usable, schema.arguments):
        try:
            json.dumps(made(given_schema))
        except SchemaError as error:
            assert error.message
