"""``$ref`` in JSON schemas: where it leads, and how a schema keeps it when it comes to stand inside another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

SHARED = ("$defs", "definitions")  # stay at the root of a document


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(own := schema.get("$ref"), str):
            yield own
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


class Circles:
    """Of one document: references that come back to themselves with nothing between that could be written. Remembers
    what it has followed, so that asking for every reference takes no longer than following each once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._is_circle: dict[str, bool] = {}

    def leads_into_one(self, reference: str) -> bool:
        if reference not in self._is_circle:
            self._follow(reference)
        return self._is_circle[reference]

    def _follow(self, reference: str) -> None:
        """Depth first, without recursion: a chain may be as long as the document."""
        path = {reference: self._onward(reference)}  # in the order in which they were met
        while path:
            current = next(reversed(path))
            following = next(path[current], None)
            if following is None:
                self._is_circle[current] = False
                del path[current]
            elif following in path or self._is_circle.get(following):
                self._is_circle |= dict.fromkeys(path, True)
                return
            elif following not in self._is_circle:
                path[following] = self._onward(following)

    def _onward(self, reference: str) -> Iterator[str]:
        target = resolved(self.root, reference)
        if not isinstance(target, Mapping):
            return iter(())
        others = target.get("allOf")
        parts = [target, *(part for part in (others if isinstance(others, list) else []) if isinstance(part, Mapping))]
        return iter([part["$ref"] for part in parts if isinstance(part.get("$ref"), str)])


def resolved(root: Mapping[str, Any], reference: str) -> Any:
    """What a pointer within the document points to; None where that is nothing, or it is no pointer."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found


def movable(schema: dict[str, Any]) -> dict[str, Any]:
    """With references to the root and into it as references to definitions."""
    found = {reference for reference in references(schema) if _is_outside_definitions(reference)}
    names = {each: _name(each) for each in sorted(found) if isinstance(resolved(schema, each), Mapping | bool)}
    if not names:
        return schema
    shared = {key: schema[key] for key in SHARED if key in schema}
    root = {key: value for key, value in schema.items() if key not in shared}
    own = {name: root if each == "#" else resolved(schema, each) for each, name in names.items()}
    whole = {**shared, "$defs": {**shared.get("$defs", {}), **own}}
    whole |= {"$ref": "#"} if "#" in names else root
    renamed: dict[str, Any] = _renamed(whole, {each: f"#/$defs/{name}" for each, name in names.items()})
    return renamed


def _is_outside_definitions(reference: str) -> bool:
    return reference == "#" or (reference.startswith("#/") and reference.split("/")[1] not in SHARED)


def _name(reference: str) -> str:
    return "the_root" + "".join(letter if letter.isalnum() else "_" for letter in reference[1:])


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: names.get(each, each) if key == "$ref" and isinstance(each, str) else _renamed(each, names)
            for key, each in value.items()
        }
    return [_renamed(each, names) for each in value] if isinstance(value, list) else value
