"""How a model writes tool calls: values that describe it, and the reader of one call. Pure.

    section open · (header · body · footer · separator)… · section close

Each family fills in what it has. The same description serves to read calls (``read_call``), to write the grammar that
makes a model call (``grammar``), and to be learned from a template (``learned``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from barrel_inference.chat.tools.scan import MalformedError, Pattern, skip_space

Tools = Mapping[str, Mapping[str, Any]]  # name to JSON schema of the parameters


class Call(NamedTuple):
    name: str
    arguments: str  # JSON text of an object


class ReadCall(NamedTuple):
    call: Call
    end: int


class BodyRead(NamedTuple):
    """``name``: None when the header holds it."""

    end: int
    name: str | None
    arguments: Mapping[str, Any]


class Begun(NamedTuple):
    """A call that is being written: its name is known, and the JSON text of its arguments stands from ``at`` on."""

    name: str
    at: int


class Body(Protocol):
    """One way to write a call's arguments (and its name, where the header does not)."""

    def read(self, text: str, at: int, name: str | None, tools: Tools) -> BodyRead | None:
        """None: more text is needed. Raises MalformedError."""

    def begun(self, text: str, at: int, name: str | None) -> Begun | None:
        """None where that cannot be told yet, or never: not all write their arguments as JSON."""

    def write(self, name: str, arguments: Mapping[str, Any]) -> str: ...

    def lark(self, rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
        """A Lark expression for the body of a call of ``name``; further rules go to ``rules``."""


class Rules:
    """A Lark grammar under construction."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def add(self, name: str, expression: str, attributes: str = "") -> str:
        """Returns the name it got."""
        unique = f"{name}_{len(self._rules)}"
        self._rules[unique] = f"{unique}{attributes}: {expression}"
        return unique

    def __str__(self) -> str:
        return "\n".join(self._rules.values())


_SHARED = ("$defs", "definitions", "x-guidance")


def split_shared(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema without what belongs at the root of a document, and that."""
    own = {key: value for key, value in schema.items() if key not in _SHARED}
    return own, {key: schema[key] for key in _SHARED if key in schema}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def quote(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Syntax:
    """``only_at_start``: calls have no marker of their own, so only an answer that begins with one is taken for one."""

    name: str
    body: Body
    header: str = ""
    footer: str = ""
    section: tuple[str, str] = ("", "")
    separator: str = ""
    only_at_start: bool = False

    @cached_property
    def triggers(self) -> tuple[str, ...]:
        """Markers that begin calls; a model may leave out the section."""
        marks = (self.section[0].strip(), Pattern(self.header).prefix)
        return tuple(dict.fromkeys(mark for mark in marks if mark))

    @property
    def goes_on(self) -> bool:
        """A call may be followed by something that is still part of the section."""
        return bool(self.section[1] or self.separator)

    @cached_property
    def wake(self) -> str:
        """Characters one of which must arrive before more can be told of a call."""
        ends = (self.footer or self.section[1]).strip()
        return ends[-1:] + "{}])"  # with an opening brace, arguments begin

    @cached_property
    def header_pattern(self) -> Pattern:
        return Pattern(self.header)

    @cached_property
    def footer_pattern(self) -> Pattern:
        return Pattern(self.footer)


def write_calls(syntax: Syntax, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Names and arguments, as the model would write them."""
    begin, end = syntax.section
    parts = []
    for index, (name, arguments) in enumerate(calls):
        header = syntax.header_pattern.fill(name=name, index=str(index), id=f"call{index:05}")
        parts.append(f"{header}{syntax.body.write(name, arguments)}{syntax.footer}")
    return f"{begin}{syntax.separator.join(parts).rstrip()}{end.rstrip()}"


def read_call(syntax: Syntax, text: str, at: int, tools: Tools, *, final: bool = False) -> ReadCall | None:
    """The call that begins at ``at``. None: more text is needed. Raises MalformedError."""
    header = syntax.header_pattern.match(text, skip_space(text, at), final=final)
    if header is None:
        return None
    body = syntax.body.read(text, skip_space(text, header.end), header.fields.get("name"), tools)
    if body is None:
        return None
    end = _footer(syntax, text, body.end, final)
    if end is None:
        return None
    name = header.fields.get("name") or body.name
    if not name:
        raise MalformedError
    return ReadCall(Call(name, json.dumps(body.arguments, ensure_ascii=False)), end)


def _footer(syntax: Syntax, text: str, at: int, final: bool) -> int | None:
    """A model that stops right after the arguments has called all the same."""
    if final and not text[at:].strip():
        return len(text)
    if not syntax.footer:
        return at
    footer = syntax.footer_pattern.match(text, at, final=final)
    return None if footer is None else footer.end


def parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Name to parameter schema, of tools in OpenAI's form."""
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


class SectionEnd(NamedTuple):
    """The section of calls is over."""


class Step(NamedTuple):
    """``call`` is None where the section is closed."""

    call: Call | None
    end: int


def next_call(syntax: Syntax, text: str, tools: Tools, *, first: bool, final: bool) -> Step | None:
    """What comes next in a section of calls, at the beginning of ``text``. None: more text is needed. Raises
    MalformedError where neither a call nor the end of the section can follow."""
    at = _reach(syntax, text, first=first, final=final)
    if not isinstance(at, int):
        return at
    read = read_call(syntax, text, at, tools, final=final)
    return read and Step(read.call, read.end)


def begun_call(syntax: Syntax, text: str, *, first: bool) -> Begun | None:
    """What can be told of the call that comes next while it is being written."""
    try:
        at = _reach(syntax, text, first=first, final=False)
        header = syntax.header_pattern.match(text, skip_space(text, at)) if isinstance(at, int) else None
        if header is None:
            return None
        return syntax.body.begun(text, skip_space(text, header.end), header.fields.get("name"))
    except MalformedError:
        return None


def _reach(syntax: Syntax, text: str, *, first: bool, final: bool) -> int | Step | None:
    """Where the next call begins, or the end of the section."""
    begin, close = syntax.section
    if first:
        return _optional(begin, text, 0, final)
    end = _optional(close, text, 0, final) if close else 0
    if end is None or end:
        return None if end is None else Step(None, end)
    return _optional(syntax.separator, text, 0, final)


def _optional(mark: str, text: str, at: int, final: bool) -> int | None:
    """Behind the mark, or ``at`` where there is another text."""
    try:
        match = Pattern(mark).match(text, at, final=final)
    except MalformedError:
        return at
    if match is None:
        return at if final else None
    return match.end
