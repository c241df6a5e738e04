"""Calls written as Python, as in ``[get_weather(city='Paris', days=3)]``. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from barrel_inference.chat.tools.scan import MalformedError
from barrel_inference.chat.tools.syntax import Begun, BodyRead, Rules, Syntax, Tools, quote, split_shared

_TOKENS = re.compile(r"""'(?:[^'\\]|\\.)*('|\Z)|"(?:[^"\\]|\\.)*("|\Z)|[()\[\]{}]""", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True)
class PythonArguments:
    """Keyword arguments; the header is ``{name}(``, the footer ``)``."""

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        end = _closing(text, at)
        if end is None:
            return None
        try:
            call = ast.parse(f"f({_with_escapes(text[at:end].strip())})", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise MalformedError from None
        if not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
            raise MalformedError
        properties = list((tools.get(name or "") or {}).get("properties") or {})
        if len(call.args) > len(properties):
            raise MalformedError
        arguments = {key: _constant(value) for key, value in zip(properties, call.args, strict=False)}
        return BodyRead(end, None, arguments | {str(each.arg): _constant(each.value) for each in call.keywords})

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        return None

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in arguments.items())

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        shared = split_shared(schema)[1]

        def argument(key: str, value: Any) -> str:
            of_value = {**value, **shared} if isinstance(value, Mapping) else {}
            json_rule = rules.add("json", f"%json {json.dumps(of_value, ensure_ascii=False)}")
            return rules.add("argument", f"{quote(key + '=')} {json_rule}")

        return separated(rules, argument, schema, ", ")


def separated(rules: Rules, argument: Any, schema: Mapping[str, Any], separator: str) -> str:
    """Lark for all required and any optional properties of an object, in order, with a separator between them."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [key for key in properties if key in (schema.get("required") or ())]
    tail = ""
    for key in reversed([key for key in properties if key not in required]):
        item = argument(key, properties[key])
        if required:
            tail = f"({quote(separator)} {item})? {tail}"
        else:
            with_tail = f"{item} ({quote(separator)} {tail})?" if tail else item
            tail = rules.add("optional", f"{with_tail} | {tail}" if tail else with_tail)
    head = f" {quote(separator)} ".join(argument(key, properties[key]) for key in required)
    if required:
        return f"{head} {tail}".strip()
    return f"({tail})?" if tail else '""'


def _closing(text: str, at: int) -> int | None:
    """Where the parenthesis closes that is open at ``at``."""
    depth = 1
    for found in _TOKENS.finditer(text, at):
        token = found[0]
        if token in ("(", "[", "{"):
            depth += 1
        elif token in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return found.start()
    return None


def _with_escapes(text: str) -> str:
    """Models do write raw line ends in strings."""
    return _TOKENS.sub(lambda found: found[0].replace("\n", "\\n"), text) if "\n" in text else text


def _constant(node: ast.expr) -> Any:
    """A literal; JSON's names for constants are taken too."""
    match node:
        case ast.Name(id=name) if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_constant(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _mapping(keys, values)
        case ast.Constant() | ast.UnaryOp():
            return _number_or_text(node)
        case _:
            raise MalformedError


def _mapping(keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> dict[str, Any]:
    if any(key is None for key in keys):
        raise MalformedError
    return {str(_constant(key)): _constant(value) for key, value in zip(keys, values, strict=True) if key is not None}


def _number_or_text(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        raise MalformedError from None
    if not isinstance(value, str | int | float | None):
        raise MalformedError
    return value


MARKERS = (("<|tool_call_start|>", "<|tool_call_end|>"), ("<|im_start|>", "List of tools: ["))
SYNTAX = Syntax(
    "pythonic",
    PythonArguments(),
    header="{name}(",
    footer=")",
    section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
    separator=", ",
)
