"""The functions a Go template may call: Go's own that registry models use, and Ollama's. Pure, except that
``currentDate`` reads the date it is given. ``and`` and ``or`` are the evaluator's, since they stop early."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from typing import Any

from barrel_inference.errors import TemplateError
from barrel_inference.registry.gotemplate.scan import character

MAX_PRINTF_WIDTH = 1000  # and precision, of all verbs of one format
_ITEM_CHARS = 32  # what an item of a list or a verb of a format counts as
_WRITING = frozenset({"print", "println", "printf", "json"})  # what writes lists and objects out

_VERB = re.compile(r"%([-+# 0]*)([0-9]{0,9})(?:\.([0-9]{1,9}))?([a-zA-Z%])")


def to_text(value: Any) -> str:
    """As Go prints it; structures print as JSON, since Ollama's types do."""
    match value:
        case None:
            return "<no value>"
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case dict():
            return to_json(value)
        case list() | tuple():
            structured = any(isinstance(item, (dict, list, tuple)) for item in value)
            return to_json(value) if structured else "[" + " ".join(to_text(item) for item in value) + "]"
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
        case float() if value == int(value) and abs(value) < 1e21:
            return str(int(value))
    return str(value)


def to_json(value: Any) -> str:
    """Compact, with Go's escapes of <, > and &."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def is_true(value: Any) -> bool:
    return bool(value)


def cost(function: str, arguments: tuple[Any, ...]) -> int:
    """Characters that a call has to go through, about; known before it is made."""
    total, left = 0, list(arguments)
    if function == "printf":
        total += _ITEM_CHARS * sum(each.count("%") for each in arguments if isinstance(each, str))
    while left:
        each = left.pop()
        if isinstance(each, str):
            total += len(each)
        elif function in _WRITING and isinstance(each, (dict, list, tuple)):
            total += _ITEM_CHARS * len(each)
            left += [*each, *each.values()] if isinstance(each, dict) else each
    return total


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, (list, tuple, str)) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key] if not isinstance(value, str) else value.encode()[key]
        else:
            raise TemplateError(f"index: {to_text(key)[:40]} is out of range")
    return value


def _slice(value: Any, *bounds: int) -> Any:
    if isinstance(value, str):  # by bytes, as len counts them
        return _slice(value.encode(), *bounds).decode("utf-8", "replace")
    start, end = (*bounds, *(0, len(value))[len(bounds) :])[:2]
    if not 0 <= start <= end <= len(value):
        raise TemplateError(f"slice: {start}:{end} is out of range")
    return value[start:end]


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _equal(first: Any, *others: Any) -> bool:
    return any(_same(first, other) for other in others)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def apply(left: Any, right: Any) -> bool:
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (left, right))
        if not numbers and not (isinstance(left, str) and isinstance(right, str)):
            raise TemplateError("incompatible types for comparison")
        return compare(left, right)

    return apply


def _length(value: Any) -> int:
    if not isinstance(value, (str, list, tuple, dict)):
        raise TemplateError(f"len of {type(value).__name__}")
    return len(value.encode()) if isinstance(value, str) else len(value)


def _printf(form: str, *values: Any) -> str:
    if sum(int(digits) for verb in _VERB.finditer(form) for digits in verb.groups()[1:3] if digits) > MAX_PRINTF_WIDTH:
        raise TemplateError(f"printf: width over {MAX_PRINTF_WIDTH}")
    rest = iter(values)
    return _VERB.sub(lambda match: _format_verb(match, rest), form)


def _format_verb(match: re.Match[str], values: Any) -> str:
    flags, width, precision, verb = match.groups()
    if verb == "%":
        return "%"
    try:
        value = next(values)
    except StopIteration:
        return f"%!{verb}(MISSING)"
    text = _verb_text(verb, value, precision)
    if "-" in flags:
        return text.ljust(int(width or 0))
    return text.zfill(int(width or 0)) if "0" in flags and verb in "dfx" else text.rjust(int(width or 0))


def _verb_text(verb: str, value: Any, precision: str | None) -> str:
    match verb:
        case "q":
            return json.dumps(value, ensure_ascii=False)
        case "f" | "e" | "g" if isinstance(value, (int, float)):
            return f"{value:.{precision or 6}{verb}}"
        case "x" if isinstance(value, int):
            return f"{value:x}"
        case "c" if isinstance(value, int):
            return character(value)
    text = to_text(value)
    return text[: int(precision)] if precision and verb == "s" else text


def _typescript(value: Any) -> str:
    """A JSON schema property as a TypeScript type, as Ollama's harmony templates want it."""
    if not isinstance(value, dict):
        return "any"
    if isinstance(value.get("anyOf"), list):
        return " | ".join(_typescript(item) for item in value["anyOf"])
    kinds = value.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    return " | ".join(_typescript_name(name, value) for name in names) or "any"


def _typescript_name(name: Any, value: dict[str, Any]) -> str:
    if name == "array":
        return f"{_typescript(value.get('items'))}[]"
    table = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}
    return {**table, "object": "Record<string, any>"}.get(str(name), "any")


def functions(today: datetime.date) -> dict[str, Callable[..., Any]]:
    """Every function by name; the date is the caller's, so that a prompt's head need not change at midnight."""
    return {
        "not": lambda value: not is_true(value),
        "eq": _equal,
        "ne": lambda left, right: not _same(left, right),
        "lt": _ordered(lambda a, b: a < b),
        "le": _ordered(lambda a, b: a <= b),
        "gt": _ordered(lambda a, b: a > b),
        "ge": _ordered(lambda a, b: a >= b),
        "len": _length,
        "index": _index,
        "slice": _slice,
        "print": lambda *values: "".join(to_text(value) for value in values),
        "println": lambda *values: " ".join(to_text(value) for value in values) + "\n",
        "printf": _printf,
        "json": to_json,
        "currentDate": lambda: today.isoformat(),
        "yesterdayDate": lambda: (today - datetime.timedelta(days=1)).isoformat(),
        "toTypeScriptType": _typescript,
    }
