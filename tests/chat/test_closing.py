"""Which objects of a schema get no properties but those it lists."""

from __future__ import annotations

from typing import Any

import pytest

from barrel_inference.chat.closing import closed

TEXT = {"type": "string"}


def listing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def shut(**properties: Any) -> dict[str, Any]:
    return listing(**properties) | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (listing(a=TEXT), shut(a=TEXT)),
        (listing(a=listing(b=TEXT)), shut(a=shut(b=TEXT))),
        ({"items": listing(a=TEXT)}, {"items": shut(a=TEXT)}),
        ({"prefixItems": [listing(a=TEXT)]}, {"prefixItems": [shut(a=TEXT)]}),
        ({"anyOf": [listing(a=TEXT), {"type": "null"}]}, {"anyOf": [shut(a=TEXT), {"type": "null"}]}),
        ({"allOf": [listing(a=TEXT)]}, {"allOf": [shut(a=TEXT)]}),
        (listing(a=TEXT) | {"required": ["b"]}, shut(a=TEXT, b={}) | {"required": ["b"]}),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": listing(a=TEXT, x={"$ref": "#/$defs/x"})}},
            {"$ref": "#/$defs/x", "$defs": {"x": shut(a=TEXT, x={"$ref": "#/$defs/x"})}},
        ),
    ],
)
def test_what_stands_alone_is_closed(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(given) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": TEXT}},  # may be no object
        listing(a=TEXT) | {"additionalProperties": True},
        listing(a=TEXT) | {"additionalProperties": TEXT},
        listing(a=TEXT) | {"patternProperties": {"^x": TEXT}},
        listing(a=TEXT) | {"minProperties": 3},
        listing(a=TEXT) | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        {"allOf": [listing(a=TEXT), listing(b=TEXT)]},
        {"allOf": [listing(a=TEXT)], "anyOf": [listing(b=TEXT), listing(c=TEXT)]},
        {"properties": {"kind": TEXT}, "oneOf": [listing(a=TEXT), listing(b=TEXT)]},
        {"allOf": [{"$ref": "#/$defs/base"}, listing(b=TEXT)], "$defs": {"base": listing(a=TEXT)}},
        {
            "allOf": [{"$ref": "#/$defs/one"}, {}],
            "$defs": {"one": {"anyOf": [{"$ref": "#/$defs/two"}]}, "two": listing(a=TEXT)},
        },
        {"$ref": "#/$defs/base", "properties": {"b": TEXT}, "$defs": {"base": listing(a=TEXT)}},
    ],
)
def test_what_is_open_or_combined_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_the_schema_that_was_given_is_left_as_it_was() -> None:
    given = {"$defs": {"x": listing(a=listing(b=TEXT))}, "anyOf": [listing(a=TEXT)]}
    copy = {"$defs": {"x": listing(a=listing(b=TEXT))}, "anyOf": [listing(a=TEXT)]}
    closed(given)
    assert given == copy
