"""Gemma's own notation, as in ``{city:<|"|>Paris<|"|>,days:3}``: JSON with bare keys and its own quote. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from barrel_inference.chat.references import resolved
from barrel_inference.chat.tools import plain_text
from barrel_inference.chat.tools.pythonic import separated
from barrel_inference.chat.tools.scan import MalformedError
from barrel_inference.chat.tools.syntax import Begun, BodyRead, Rules, Syntax, Tools, quote

_BARE_KEY = re.compile(r"([{,]\s*)([\w.$-]+)\s*:")
_ANY_KEY = '/[A-Za-z0-9_.$-]+/ ":"'
_BRACES = re.compile(r"[{}]")


@dataclass(frozen=True)
class GemmaArguments:
    """``mark`` stands at both ends of a string."""

    mark: str = '<|"|>'

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        if at >= len(text):
            return None
        if text[at] != "{":
            raise MalformedError
        end = self._closing(text, at)
        if end is None:
            return None
        segments = text[at:end].split(self.mark)
        parts = (
            json.dumps(part) if index % 2 else _BARE_KEY.sub(r'\1"\2":', part) for index, part in enumerate(segments)
        )
        try:
            value = json.loads("".join(parts), strict=False)
        except (ValueError, RecursionError):
            raise MalformedError from None
        return BodyRead(end, None, value)

    def _closing(self, text: str, at: int) -> int | None:
        depth = 0
        while True:
            mark = text.find(self.mark, at)
            stop = len(text) if mark < 0 else mark
            for brace in _BRACES.finditer(text, at, stop):
                depth += 1 if brace[0] == "{" else -1
                if depth == 0:
                    return brace.end()
            closing = text.find(self.mark, mark + len(self.mark)) if mark >= 0 else -1
            if closing < 0:
                return None
            at = closing + len(self.mark)

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        return None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self._written(arguments)

    def _written(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._written(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(self._written, value)) + "]"
        return f"{self.mark}{value}{self.mark}" if isinstance(value, str) else json.dumps(value)

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        own = schema if "$ref" in schema else {**schema, "type": "object"}
        return self._lark_value(rules, own, schema, ())

    def _lark_value(self, rules: Rules, schema: Any, root: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Objects, arrays, strings and choices in Gemma's notation; everything else looks like JSON. ``path``: the
        references that led here; one that comes again may lead to anything."""
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")

        def inner(of: Any) -> str:
            return self._lark_value(rules, of, root, path)

        def argument(key: str, value: Any) -> str:
            return rules.add("argument", f"{quote(key + ':')} {inner(value)}")

        if isinstance(reference := schema.get("$ref"), str) and reference not in path:
            return self._lark_value(rules, resolved(root, reference), root, (*path, reference))
        if choices := plain_text.choices(schema):
            return "(" + " | ".join(quote(self._written(choice)) for choice in choices) + ")"
        if isinstance(options := schema.get("anyOf") or schema.get("oneOf"), list):
            return "(" + " | ".join(map(inner, options)) + ")"
        if isinstance(kind, list) and kind:
            return "(" + " | ".join(inner({**schema, "type": each}) for each in kind) + ")"
        if kind == "object":
            listed = bool(schema.get("properties"))
            pairs = separated(rules, argument, schema, ",") if listed else _unlisted(rules, schema, inner)
            return rules.add("object", f'"{{" {pairs} "}}"')
        if kind == "array":
            return rules.add("array", f'"[" {_items(inner(schema.get("items")), schema)} "]"')
        if kind == "string":
            return rules.add("string", f"{quote(self.mark)} {plain_text.text(rules, schema, self.mark)}")
        if kind in ("integer", "number", "boolean", "null"):
            return rules.add("json", f"%json {json.dumps(schema)}")
        return self._anything(rules)

    def _anything(self, rules: Rules) -> str:
        text = f"{quote(self.mark)} {plain_text.text(rules, {}, self.mark)}"
        scalar = rules.add("json", '%json {"type": ["number", "boolean", "null"]}')
        return rules.add("scalar", f"{text} | {scalar}")


def _unlisted(rules: Rules, schema: Mapping[str, Any], inner: Callable[[Any], str]) -> str:
    """What an object holds that lists no properties: nothing, or any."""
    allowed = schema.get("additionalProperties", True)
    if allowed is False:
        return ""
    pair = rules.add("pair", f"{_ANY_KEY} {inner(allowed)}")
    return f'({pair} ("," {pair})*)?'


def _items(item: str, schema: Mapping[str, Any]) -> str:
    """With commas between them, as many as the schema wants."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return '""'
    more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
    return f"{item} {more}" if least else f"({item} {more})?"


MARKERS = (("<|tool_call>", "call:", '<|"|>'),)
SYNTAX = Syntax("gemma", GemmaArguments(), header="<|tool_call>call:{name}", footer="<tool_call|>")

FUNCTION_MARKERS = (("<start_function_call>", "call:", "<escape>"),)
FUNCTION_SYNTAX = Syntax(
    "function_gemma",
    GemmaArguments(mark="<escape>"),
    header="<start_function_call>call:{name}",
    footer="<end_function_call>",
)
