"""Objects of JSON schemas that list their properties get no others: asked for one, small models go on inventing them.
Pure.

Every dialect's users mean it so, and llama.cpp and Ollama read schemas so. An object stays open where closing it could
forbid what another part of the schema asks for: below combinations of schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OPEN_BY = frozenset(
    {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "minProperties"}
)
_DEFINITIONS = ("$defs", "definitions")
_NAMED = ("properties", "patternProperties", *_DEFINITIONS)
_CHOICES = ("anyOf", "oneOf")


def closed(root: dict[str, Any]) -> dict[str, Any]:
    """``root`` with its objects closed. References lead into ``$defs`` or ``definitions`` only."""
    combined: set[str] = set()
    while more := set(_combined(root, True, combined)) - combined:
        combined |= more
    result: dict[str, Any] = _closed(root, True, combined)
    return result


def own(schema: dict[str, Any]) -> dict[str, Any]:
    """This object only. What is required without being listed may be anything."""
    listed, required = schema["properties"], schema.get("required")
    names = required if isinstance(required, list) else []
    unlisted: dict[str, Any] = {name: {} for name in names if isinstance(name, str) and name not in listed}
    return schema | {"properties": listed | unlisted, "additionalProperties": False}


def _combined(schema: Any, is_alone: bool, combined: set[str]) -> Iterator[str]:
    """References to what is combined with something else."""
    if not isinstance(schema, Mapping):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and not (is_alone and not schema.keys() & (_OPEN_BY - {"$ref"} | {"properties"})):
        yield reference
    for _, child, alone in _children(schema, is_alone, combined):
        yield from _combined(child, alone, combined)


def _closed(schema: Any, is_alone: bool, combined: set[str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {**schema}
    for key in (*_NAMED, "prefixItems", *_CHOICES, "allOf"):  # copies, to be filled
        if isinstance(value := schema.get(key), Mapping | list):
            result[key] = dict(value) if isinstance(value, Mapping) else list(value)
    for path, child, alone in _children(schema, is_alone, combined):
        holder = result if len(path) == 1 else result[path[0]]
        holder[path[-1]] = _closed(child, alone, combined)
    return own(result) if is_alone and _lists_all(schema) else result


def _lists_all(schema: Mapping[str, Any]) -> bool:
    is_object = schema.get("type") in ("object", ["object"], ["object", "null"], ["null", "object"])
    return is_object and isinstance(schema.get("properties"), Mapping) and not schema.keys() & _OPEN_BY


def _children(
    schema: Mapping[str, Any], is_alone: bool, combined: set[str]
) -> Iterator[tuple[tuple[Any, ...], Any, bool]]:
    """Where it stands, what, and whether nothing else speaks about the same value."""
    is_bare = is_alone and "properties" not in schema and "$ref" not in schema
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            for name, child in value.items():
                yield (key, name), child, key not in _DEFINITIONS or f"#/{key}/{name}" not in combined
        elif key == "prefixItems" and isinstance(value, list):
            yield from (((key, index), child, True) for index, child in enumerate(value))
        elif key in _CHOICES and isinstance(value, list):
            alone = is_bare and not schema.keys() & ({*_CHOICES, "allOf"} - {key})
            yield from (((key, index), child, alone) for index, child in enumerate(value))
        elif key == "allOf" and isinstance(value, list):
            alone = is_bare and len(value) == 1 and not schema.keys() & set(_CHOICES)
            yield from (((key, index), child, alone) for index, child in enumerate(value))
        elif key in ("items", "additionalProperties"):
            yield (key,), value, True
