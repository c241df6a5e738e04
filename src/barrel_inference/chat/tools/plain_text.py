"""Texts that stand in a call as they are, not in JSON: held to what their schema says of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from barrel_inference.chat.tools.syntax import Rules, quote

_ANY = r"(?s:.)"
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-5][0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
_ANCHOR = re.compile(r"(?<!\\)[$^|]|\[\^")


def choices(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum") or ())


def text(rules: Rules, schema: Mapping[str, Any], ending: str) -> str:
    """A Lark rule for a text and the mark that ends it."""
    terms = [term(regex) for regex in _terms(schema)] or [term(f"{_ANY}*")]
    body = terms[0] if len(terms) == 1 else rules.add("TEXT", " & ".join(terms))
    return rules.add("text", body, f"[suffix={quote(ending)}]")


def _terms(schema: Mapping[str, Any]) -> Iterator[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least or most != "":
        yield f"{_ANY}{{{least},{most}}}"
    if isinstance(pattern := schema.get("pattern"), str) and pattern:
        yield _whole(pattern)
    if (known := _FORMATS.get(schema.get("format", ""))) is not None:
        yield known


def _whole(pattern: str) -> str:
    """A pattern is searched for; a term is all there is."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    if any(found[0] in "^$|" for found in _ANCHOR.finditer(inner)):
        begins, ends, inner = False, False, ""  # alternatives with anchors of their own are not told apart here
    return ("" if begins else f"{_ANY}*") + (f"({inner})" if inner else "") + ("" if ends else f"{_ANY}*")


def term(regex: str) -> str:
    """As Lark writes it."""
    escaped = re.sub(r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), regex)
    return f"/{escaped}/"


def literal(words: str) -> str:
    """A regular expression for just that."""
    return "".join(r"\n" if letter == "\n" else re.escape(letter) for letter in words)
