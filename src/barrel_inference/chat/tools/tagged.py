"""Calls whose arguments each stand between their own tags, as in ``<parameter=city>Paris</parameter>``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from barrel_inference.chat.tools import plain_text
from barrel_inference.chat.tools.scan import MalformedError, Pattern
from barrel_inference.chat.tools.syntax import Begun, BodyRead, Rules, Tools, as_json, quote, split_shared

_STRING = frozenset({"string"})
_CDATA = ("<![CDATA[", "]]>")


@dataclass(frozen=True)
class Tagged:
    """``open`` has the field {key}, ``close`` may have it. Strings are written as they are, all else as JSON.

    ``opens``: where the opening tag tells the type of the value, that tag by JSON type ("" is for any other).
    ``end``: what follows the last argument (the call's footer), needed to know a closing tag from its like in a value.
    ``cdata``: text that looks like markup is written as XML has it.
    """

    open: str
    close: str
    end: str
    opens: Mapping[str, str] = field(default_factory=dict)
    cdata: bool = False

    @cached_property
    def _opens(self) -> list[tuple[str | None, Pattern]]:
        typed: list[tuple[str | None, Pattern]] = [(kind, Pattern(source)) for kind, source in self.opens.items()]
        return typed or [(None, Pattern(self.open))]

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        arguments: dict[str, Any] = {}
        properties = (tools.get(name or "") or {}).get("properties") or {}
        while True:
            try:
                opened = self._open(text, at)
            except MalformedError:
                return BodyRead(at, None, arguments)
            if opened is None:
                return None
            kind, key, begin = opened
            closed = self._close(text, begin, key)
            if closed is None:
                return None
            end, at = closed
            arguments[key] = self._value(text[begin:end], kind, properties.get(key))

    def _open(self, text: str, at: int) -> tuple[str | None, str, int] | None:
        """Type, key, and where the value begins. Raises MalformedError where no argument begins."""
        waiting = False
        for kind, pattern in self._opens:
            try:
                match = pattern.match(text, at)
            except MalformedError:
                continue
            if match is not None:
                return kind, match.fields["key"].strip(), self._after(pattern, text, match.end)
            waiting = True
        if waiting:
            return None
        raise MalformedError

    @staticmethod
    def _after(pattern: Pattern, text: str, end: int) -> int:
        """Only as much white space as the tag itself ends with belongs to the tag: the rest is the value's."""
        token_end = len(text[:end].rstrip())
        margin = pattern.source[len(pattern.source.rstrip()) :]
        return token_end + len(margin) if text.startswith(margin, token_end) else token_end

    def _close(self, text: str, at: int, key: str) -> tuple[int, int] | None:
        """Where the value ends and where the next thing begins. A closing tag counts when another argument or the end
        of the call follows it, so that values may hold the like of it."""
        mark = Pattern(self.close).fill(key=key).strip()
        begin = text.find(mark, at)
        while begin >= 0:
            end = begin + len(mark)
            follows = self._follows(text, end)
            if follows is None:
                return None
            if follows:
                return begin, end
            begin = text.find(mark, begin + 1)
        return None

    def _follows(self, text: str, at: int) -> bool | None:
        patterns = [pattern for _, pattern in self._opens]
        if self.end:
            patterns.append(Pattern(self.end))
        waiting = False
        for pattern in patterns:
            try:
                if pattern.match(text, at) is not None:
                    return True
                waiting = True
            except MalformedError:
                pass
        return None if waiting else not self.end

    def _value(self, text: str, kind: str | None, schema: Any) -> Any:
        text = self._trim(text)
        if self.cdata and text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
            return text.removeprefix(_CDATA[0]).removesuffix(_CDATA[1])
        return _value(text, kind, schema)

    def _trim(self, value: str) -> str:
        margin = self.close[: len(self.close) - len(self.close.lstrip())]
        return value.removesuffix(margin) if margin else value

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        return None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return "".join(self._written(key, value) for key, value in arguments.items())

    def _written(self, key: str, value: Any) -> str:
        source = self.opens.get(_kind(value), self.opens.get("", self.open))
        text = value if isinstance(value, str) else as_json(value)
        if self.cdata and isinstance(value, str) and any(mark in value for mark in "<&\n"):
            text = f"{_CDATA[0]}{value}{_CDATA[1]}"
        return Pattern(source).fill(key=key) + text + Pattern(self.close).fill(key=key)

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        """Required arguments, then optional ones, each in the schema's order."""
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = [key for key in properties if key in (schema.get("required") or ())]
        optional = [key for key in properties if key not in required]
        parts = [self._argument(rules, key, properties[key], schema) for key in required]
        parts += [f"{self._argument(rules, key, properties[key], schema)}?" for key in optional]
        return " ".join(parts) or '""'

    def _argument(self, rules: Rules, key: str, schema: Any, root: Mapping[str, Any]) -> str:
        kinds = _kinds(schema)
        source = self.opens.get(next(iter(kinds), ""), self.opens.get("", self.open))
        begin, close = Pattern(source).fill(key=key), Pattern(self.close).fill(key=key)
        if kinds == _STRING and (choices := plain_text.choices(schema)):
            value = "(" + " | ".join(quote(str(choice)) for choice in choices) + f") {quote(close)}"
        elif kinds == _STRING:
            own = schema if schema.get("type") == "string" else {}
            value = plain_text.text(rules, own, close)
        else:
            nested = {**schema, **split_shared(root)[1]} if isinstance(schema, Mapping) else schema
            value = rules.add("json", f"%json {as_json(nested)}") + f" {quote(close)}"
        return rules.add("argument", f"{quote(begin)} {value}")


def _kinds(schema: Any) -> frozenset[str]:
    """JSON types that a schema allows; empty when it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(kind)
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    return frozenset().union(*(_kinds(option) for option in options))


def _value(text: str, kind: str | None, schema: Any) -> Any:
    """A string where the tag or the schema says so, or where the text is no JSON."""
    kinds = _kinds(schema) if kind is None else frozenset({kind})
    if kinds == _STRING:
        return text
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    if "string" in kinds and not _fits(value, kinds):
        return text
    return value


def _fits(value: Any, kinds: frozenset[str]) -> bool:
    kind = _kind(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "string")
