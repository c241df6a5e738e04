"""JSON schemas to constraints on the output: what can be enforced is, what cannot is refused by name. Pure.

The grammar engine handles nearly every schema in use; here is what it does not know about, said in a way it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from barrel_inference.chat import closing
from barrel_inference.chat.references import Circles, movable, references, resolved
from barrel_inference.errors import SchemaError
from barrel_inference.types import Constraint

MAX_SCHEMA_CHARS = 1 << 20
MAX_DEPTH = 64
_LARGEST = 2**53 - 1  # whole numbers beyond are not exact in JSON

_ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "nullable",
        "discriminator",
        "xml",
        "externalDocs",
        "markdownDescription",
    }
)
_NEVER = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
    }
)
# In use as hints; they restrict no text.
_LOOSE_FORMATS = frozenset(
    {
        "binary",
        "byte",
        "password",
        "path",
        "file-path",
        "directory-path",
        "int32",
        "int64",
        "uint32",
        "uint64",
        "float",
        "double",
        "decimal",
        "json-string",
        "multi-host-uri",
        "uuid4",
        "url",
        "string",
    }
)
_FORMATS = _LOOSE_FORMATS | frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
_TRIVIAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "not": (False,),
}
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def constraint(schema: Mapping[str, Any] | bool) -> Constraint:
    """Raises SchemaError naming what cannot be enforced."""
    return Constraint(json_schema=json.dumps(usable(schema), ensure_ascii=False))


def any_object() -> Constraint:
    """What "json_object" asks for."""
    return Constraint(json_schema='{"type": "object"}')


# Spaces as models are taught to write them; free white space is an invitation to write nothing else.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def arguments(schema: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """Of a tool's arguments: an object with the properties it names and no others. Agents bring their tools' schemas as
    they are, so without ``strict`` keywords that cannot be enforced are left out instead of refused."""
    found = usable(schema if strict else _enforceable(schema, Circles(schema)))
    if "$ref" not in found:
        found = _closed({"type": "object"} | found)
    own = {key: value for key, value in found.items() if key not in ("$id", "$schema")}
    return own | {"x-guidance": _SPACING if strict else _SPACING | {"coerce_one_of": True}}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if "additionalProperties" in schema or not isinstance(schema.get("properties"), dict):
        return {"additionalProperties": "properties" not in schema} | schema
    return closing.own(schema)


# Of regular expressions, what the grammar engine does not know: looking around, references back, bounds of words.
_HARD_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9bBcGkZ]|(?<!\\)(?<!\\[pPu])\{(?!\d+(?:,\d*)?\})")


def _enforceable(schema: Any, circles: Circles) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _NEVER and not _is_hard(key, value, circles)}
    return dict(_children(kept, lambda _, value: _enforceable(value, circles)))


def _is_hard(key: str, value: Any, circles: Circles) -> bool:
    match key, value:
        case "format", str():
            return value not in _FORMATS
        case "pattern", str():
            return not _is_known_pattern(value)
        case "patternProperties", Mapping():
            return len(value) > 1 or not all(map(_is_known_pattern, value))
        case "$ref", str():
            is_pointer = value == "#" or value.startswith("#/")
            lost = resolved(circles.root, value) is None if is_pointer else not value.startswith("#")
            return lost or circles.leads_into_one(value)
    return False


def _is_known_pattern(pattern: str) -> bool:
    if _HARD_PATTERN.search(pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return "\\p" in pattern or "\\u{" in pattern  # which Python does not know
    return True


def usable(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """The schema as the grammar engine takes it, allowing nothing that the original does not."""
    if schema is False:
        raise SchemaError("the schema false allows nothing")
    if schema is True:
        return {}
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise SchemaError(f"the schema is longer than {MAX_SCHEMA_CHARS} characters")
    root = _rewritten(schema, "#", 0)
    circles = Circles(root)
    circle = next((each for each in references(root) if circles.leads_into_one(each)), None)
    if circle is not None:
        raise SchemaError(f"the JSON schema's reference {circle!r} leads back to itself", keyword="$ref")
    return closing.closed(movable(root))


def _rewritten(schema: Any, where: str, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if depth > MAX_DEPTH:
        raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    result = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    for rewrite in _REWRITES:
        result = rewrite(result)
    _refuse_unknown(result, where)
    return dict(_children(result, lambda key, value: _rewritten(value, f"{where}/{key}", depth + 1)))


def _children(schema: Mapping[str, Any], change: Callable[[str, Any], Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            yield key, {name: change(f"{key}/{name}", each) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list):
            yield key, [change(f"{key}/{index}", each) for index, each in enumerate(value)]
        elif key in _SINGLE:
            yield key, change(key, value)
        else:
            yield key, value


def _refuse_unknown(schema: Mapping[str, Any], where: str) -> None:
    for key in schema:
        if key in _NEVER:
            raise SchemaError(f"the JSON schema keyword {key!r} (at {where}) cannot be enforced", keyword=key)


_ADJACENT = {"then": ("if",), "else": ("if",), "if": ("then", "else"), "minContains": ("contains",)}
_ADJACENT["maxContains"] = _ADJACENT["minContains"]


def _no_lonely_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what has no effect where none of certain others is beside it."""
    return {key: value for key, value in schema.items() if any(map(schema.__contains__, _ADJACENT.get(key, (key,))))}


def _no_trivial_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what restricts nothing."""
    kept = {key: value for key, value in schema.items() if value not in _TRIVIAL.get(key, ())}
    if kept.get("format") in _LOOSE_FORMATS:
        del kept["format"]
    return kept


def _names_as_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """``propertyNames``: nothing when any name will do, else a pattern for the properties that are not listed."""
    names = schema.get("propertyNames")
    if names is None:
        return schema
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    if names is True or (isinstance(names, Mapping) and not names.keys() - _ANNOTATIONS - {"type"}):
        return rest
    if names is False:
        return rest | {"maxProperties": 0}
    if not isinstance(names, Mapping) or "patternProperties" in rest:
        return schema
    if names.keys() <= _ANNOTATIONS | {"type", "minLength", "maxLength"}:
        counts = _whole_counts(dict(names))
        names = {"pattern": f"^(?s:.){{{counts.get('minLength', 0)},{counts.get('maxLength', '')}}}$"}
    if names.keys() - _ANNOTATIONS - {"type"} not in ({"pattern"}, {"enum"}):
        return schema
    others = rest.pop("additionalProperties", True)
    if "enum" in names:
        known = rest.get("properties") or {}
        rest["properties"] = known | {str(name): others for name in names["enum"] if name not in known}
    else:
        rest["patternProperties"] = {names["pattern"]: others}
    return rest | {"type": "object", "additionalProperties": False}


_APPLICATORS = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas"})


def _evaluated(schema: dict[str, Any]) -> dict[str, Any]:
    """What no other keyword has seen is, without keywords that look into other schemas, what is not listed."""
    result = dict(schema)
    if _APPLICATORS & schema.keys() or isinstance(schema.get("items"), list):
        return result
    for unevaluated, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if unevaluated in result:
            result.setdefault(plain, result.pop(unevaluated))
            result.pop(unevaluated, None)
    return result


def _dependencies_as_choices(schema: dict[str, Any]) -> dict[str, Any]:
    """Either a property is absent, or what depends on it holds."""
    found = {key: schema[key] for key in ("dependencies", "dependentRequired", "dependentSchemas") if key in schema}
    others = schema.get("allOf", [])
    if not found or not isinstance(others, list) or not all(isinstance(each, Mapping) for each in found.values()):
        return schema
    needs = [need for each in found.values() for need in each.items()]
    choices = [{"anyOf": [{"properties": {name: False}}, _with_need(name, need)]} for name, need in needs]
    rest = {key: value for key, value in schema.items() if key not in found}
    return rest | {"allOf": [*others, *choices]} if choices else rest


def _with_need(name: str, need: Any) -> dict[str, Any]:
    """``need``: names of properties (one may stand alone), or a schema."""
    if isinstance(need, list | str):
        return {"required": [name, *([need] if isinstance(need, str) else need)]}
    return {"required": [name], "allOf": [need]}


_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})


def _whole_counts(schema: dict[str, Any]) -> dict[str, Any]:
    """2.0 is a whole number, too."""
    return {
        key: int(value) if key in _COUNTS and isinstance(value, float) and value.is_integer() else value
        for key, value in schema.items()
    }


def _within_exact_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    result = dict(schema)
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        bound = result.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) > _LARGEST:
            result[key] = _LARGEST if bound > 0 else -_LARGEST
    return result


_REWRITES = (
    _whole_counts,
    _no_lonely_keywords,
    _no_trivial_keywords,
    _evaluated,
    _names_as_patterns,
    _dependencies_as_choices,
    _within_exact_numbers,
)
