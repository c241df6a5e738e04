"""Gemma's own notation, as in ``{city:<|"|>Paris<|"|>,days:3}``: JSON with bare keys and its own quote. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barrel_inference.chat.tools.pythonic import separated
from barrel_inference.chat.tools.scan import MalformedError
from barrel_inference.chat.tools.syntax import Begun, BodyRead, Rules, Syntax, Tools, quote

_BARE_KEY = re.compile(r"([{,]\s*)([\w.$-]+)\s*:")
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
        return self._lark_value(rules, {**schema, "type": "object"})

    def _lark_value(self, rules: Rules, schema: Any) -> str:
        """Objects, arrays, strings and choices in Gemma's notation; everything else looks like JSON."""
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        if "enum" in schema or "const" in schema:
            choices = schema.get("enum") or [schema["const"]]
            return "(" + " | ".join(quote(self._written(choice)) for choice in choices) + ")"
        if kind == "object" and schema.get("properties"):
            inner = separated(rules, self._argument(rules), schema, ",")
            return rules.add("object", f'"{{" {inner} "}}"')
        if kind == "array":
            item = self._lark_value(rules, schema.get("items"))
            return rules.add("array", f'"[" ({item} ("," {item})*)? "]"')
        if kind == "string":
            return rules.add("string", f"{quote(self.mark)} {self._text(rules)}")
        if kind in ("integer", "number", "boolean", "null"):
            return rules.add("json", f"%json {json.dumps(schema)}")
        return self._anything(rules)

    def _argument(self, rules: Rules) -> Any:
        return lambda key, value: rules.add("argument", f"{quote(key + ':')} {self._lark_value(rules, value)}")

    def _text(self, rules: Rules) -> str:
        return rules.add("text", r"/(?s:.*)/", f"[suffix={quote(self.mark)}]")

    def _anything(self, rules: Rules) -> str:
        text = f"{quote(self.mark)} {self._text(rules)}"
        scalar = rules.add("json", '%json {"type": ["number", "boolean", "null"]}')
        return rules.add("scalar", f"{text} | {scalar}")


MARKERS = (("<|tool_call>", "call:", '<|"|>'),)
SYNTAX = Syntax("gemma", GemmaArguments(), header="<|tool_call>call:{name}", footer="<tool_call|>")

FUNCTION_MARKERS = (("<start_function_call>", "call:", "<escape>"),)
FUNCTION_SYNTAX = Syntax(
    "function_gemma",
    GemmaArguments(mark="<escape>"),
    header="<start_function_call>call:{name}",
    footer="<end_function_call>",
)
