"""The Lark grammar (llguidance's dialect) that makes a model's tool calls valid against their schemas. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from barrel_inference.chat.tools.scan import json_end
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


# ---- control tokens

_STRING = r'"(?:[^"\\]|\\.)*"'
_PIECES = re.compile(
    rf"""(?P<json>%json\s*)(?=\{{)
      | (?P<suffix>(?P<rule>\w+)\[suffix=(?P<mark>{_STRING})\]:\s*(?P<body>.*))
      | (?P<regex>/(?:[^/\\\n]|\\.)+/)
      | (?P<string>{_STRING})""",
    re.VERBOSE,
)


def control_tokens(lark: str, ids: Mapping[str, int]) -> str:
    """The grammar with control tokens where its strings spell them: llguidance never takes text for one."""
    if not any(text in lark for text in ids):
        return lark
    marks = re.compile("|".join(re.escape(text) for text in sorted(ids, key=len, reverse=True)))
    result: list[str] = []
    at = 0
    while (found := _PIECES.search(lark, at)) is not None:
        result.append(lark[at : found.start()])
        at = found.end()
        if found["json"]:
            end = json_end(lark, at) or len(lark)
            result.append(found[0] + lark[at:end])
            at = end
        elif found["suffix"]:
            result.append(_suffixed(found["rule"], json.loads(found["mark"]), found["body"], marks, ids))
        elif found["string"]:
            result.append(_spelled(json.loads(found[0]), marks, ids))
        else:
            result.append(found[0])
    return "".join([*result, lark[at:]])


def _spelled(text: str, marks: re.Pattern[str], ids: Mapping[str, int]) -> str:
    parts: list[str] = []
    at = 0
    for mark in marks.finditer(text):
        parts += [quote(text[at : mark.start()])] * (mark.start() > at) + [f"<[{ids[mark[0]]}]>"]
        at = mark.end()
    parts += [quote(text[at:])] * (at < len(text) or not parts)
    return " ".join(parts)


def _suffixed(rule: str, suffix: str, body: str, marks: re.Pattern[str], ids: Mapping[str, int]) -> str:
    """Text up to a suffix; a control token cannot occur in text, so that the text ends there by itself."""
    found = marks.search(suffix)
    if found is None:
        return f"{rule}[suffix={quote(suffix)}]: {body}"
    before, rest = suffix[: found.start()], suffix[found.start() :]
    attribute = f"[suffix={quote(before)}]" if before else ""
    return f"{rule}: {rule}_body {_spelled(rest, marks, ids)}\n{rule}_body{attribute}: {body}"
