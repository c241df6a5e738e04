"""Calls written as JSON: the whole call as an object, or the arguments alone behind a header. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from barrel_inference.chat.tools.scan import MalformedError, json_end
from barrel_inference.chat.tools.syntax import Begun, BodyRead, Rules, Tools, as_json, split_shared

_NAME_KEYS = ("name", "tool_name", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_KEY = re.compile(r'[{,]?\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"(?=\s*,)')


@dataclass(frozen=True)
class JsonCall:
    """``{"name": …, "arguments": {…}}``. Reads the usual other keys too; writes its own."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None  # written before the name when ``id_first``, else at the end
    id_first: bool = False
    known_only: bool = False  # the text around does not mark a call, so that an unknown name is no call

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        value, end = _object(text, at)
        if value is None:
            return None
        value = value["function"] if isinstance(value.get("function"), dict) else value
        found = _one_of(value, (self.name_key, *_NAME_KEYS))
        if not isinstance(found, str) or (self.known_only and found not in tools):
            raise MalformedError
        return BodyRead(end, found, _arguments(_one_of(value, (self.arguments_key, *_ARGUMENT_KEYS))))

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        """Of a call in the order that ``lark`` prescribes: texts, the name among them, and then the arguments."""
        found: str | None = None
        while (key := _key(text, at)) is not None:
            if key.word == self.arguments_key:
                return Begun(found, key.end) if found and text.startswith("{", key.end) else None
            value = _TEXT.match(text, key.end)
            if value is None:
                return None
            found = json.loads(value[0], strict=False) if key.word == self.name_key else found
            at = value.end()
        return None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        call: dict[str, Any] = {self.name_key: name, self.arguments_key: arguments}
        if self.id_key:
            own_id = {self.id_key: "0"}
            call = own_id | call if self.id_first else call | own_id
        return as_json(call)

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        own, shared = split_shared(schema)
        properties: dict[str, Any] = {self.name_key: {"const": name}, self.arguments_key: own}
        if self.id_key:
            id_schema = {self.id_key: {"type": "string", "pattern": "^[A-Za-z0-9]{1,16}$"}}
            properties = id_schema | properties if self.id_first else properties | id_schema
        return _json_rule(rules, _whole(properties, shared))


@dataclass(frozen=True)
class KeyedJsonCall:
    """``{"the_name": {…}}``."""

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        value, end = _object(text, at)
        if value is None:
            return None
        if len(value) != 1:
            raise MalformedError
        ((found, arguments),) = value.items()
        return BodyRead(end, found, _arguments(arguments))

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        key = _key(text, at)
        return Begun(key.word, key.end) if key and text.startswith("{", key.end) else None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return as_json({name: arguments})

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        own, shared = split_shared(schema)
        return _json_rule(rules, _whole({name: own}, shared))


@dataclass(frozen=True)
class JsonArguments:
    """The arguments alone; the header names the function."""

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        value, end = _object(text, at)
        return None if value is None else BodyRead(end, None, value)

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        return Begun(name, at) if name and text.startswith("{", at) else None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return as_json(arguments)

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        return _json_rule(rules, schema)


class _Key(NamedTuple):
    word: str
    end: int  # where its value begins


def _key(text: str, at: int) -> _Key | None:
    found = _KEY.match(text, at)
    try:
        return found and _Key(json.loads(found[1], strict=False), found.end())
    except ValueError:
        return None


def _object(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    if at >= len(text):
        return None, at
    if text[at] != "{":
        raise MalformedError
    end = json_end(text, at)
    if end is None:
        return None, at
    try:
        return json.loads(text[at:end], strict=False), end  # models do write raw line ends in strings
    except (ValueError, RecursionError):
        raise MalformedError from None


def _one_of(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _arguments(value: Any) -> Mapping[str, Any]:
    """An object, written as such or as a string of JSON; a call without arguments may leave them out."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}", strict=False)
        except (ValueError, RecursionError):
            raise MalformedError from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedError
    return value


def _whole(properties: Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object of exactly these properties; what references lead to stays at the root."""
    whole = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {**whole, **shared}


def _json_rule(rules: Rules, schema: Mapping[str, Any]) -> str:
    return rules.add("json", f"%json {as_json(schema)}")
