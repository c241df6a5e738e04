"""The Lark grammar (llguidance's dialect) that makes a model's tool calls valid against their schemas. Pure."""

from __future__ import annotations

import re

from barrel_inference.chat.tools.syntax import Rules, Syntax, Tools, quote

_FIELD = re.compile(r"\{(name|id|index)\}")
_FIELD_RULES = {"id": "/[A-Za-z0-9]{9}/", "index": "/[0-9]+/"}


def calls(syntax: Syntax, tools: Tools, *, parallel: bool, opened: bool = False) -> str:
    """One call of one of ``tools``, or with ``parallel`` any number of them. ``opened``: the trigger has been written
    already, the grammar holds for what follows it."""
    rules = Rules()
    begin, end = (_text(mark) for mark in syntax.section)
    call = _any_call(rules, syntax, syntax.header, tools)
    first = call
    if opened and syntax.section[0]:
        begin = _text(_behind(syntax.section[0], syntax.triggers[0]))
    elif opened and syntax.triggers:
        first = _any_call(rules, syntax, _behind(syntax.header, syntax.triggers[0]), tools)
    more = f"({_between(syntax)} {call})*" if parallel else ""
    return f"start: {begin} {first} {more} {end}\n{rules}\n"


def _any_call(rules: Rules, syntax: Syntax, header: str, tools: Tools) -> str:
    each = [rules.add("call", _call(rules, syntax, header, name, tools)) for name in tools]
    return rules.add("any_call", " | ".join(each))


def _call(rules: Rules, syntax: Syntax, header: str, name: str, tools: Tools) -> str:
    body = syntax.body.lark(rules, name, tools[name])
    return f"{_header(header, name)} {body} {_text(syntax.footer.rstrip())}"


def _header(header: str, name: str) -> str:
    parts = _FIELD.split(header)
    texts = [_text(part) if index % 2 == 0 else _field(part, name) for index, part in enumerate(parts)]
    return " ".join(filter(None, texts))


def _field(field: str, name: str) -> str:
    return quote(name) if field == "name" else _FIELD_RULES[field]


def _between(syntax: Syntax) -> str:
    """Without a separator, calls are parted by the white space that their footer ends with."""
    margin = syntax.footer[len(syntax.footer.rstrip()) :]
    return quote(syntax.separator or margin)


def _behind(text: str, mark: str) -> str:
    return text.lstrip().removeprefix(mark)


def _text(text: str) -> str:
    return quote(text) if text else ""
