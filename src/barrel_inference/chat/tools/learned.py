"""Learning a call syntax from the template that writes it: render calls with known words, and see what stands around
them. Covers families that nobody has described here. Pure.

    one call     S H1 body1 F E          S, E: the section, if there is one
    two calls    S H1 body1 F | H2 body2 F E        |: the separator
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from barrel_inference.chat.tools.gemma import GemmaArguments
from barrel_inference.chat.tools.json_calls import JsonArguments, JsonCall, KeyedJsonCall
from barrel_inference.chat.tools.pythonic import PythonArguments
from barrel_inference.chat.tools.scan import common_prefix, common_suffix, json_end
from barrel_inference.chat.tools.syntax import Body, Syntax
from barrel_inference.chat.tools.tagged import Tagged
from barrel_inference.errors import TemplateError


class Probe(NamedTuple):
    """One call to render; its words occur nowhere else."""

    name: str
    arguments: dict[str, Any]
    id: str


Render = Callable[[Sequence[Probe]], str]
"""The calls of one assistant message as the template writes them, without what begins and ends every message. Raises
TemplateError."""

FIRST = Probe("zqalpha", {"zqtext": "zqvalue", "zqcount": 7351}, "zqid00001")
SECOND = Probe("zqbeta", {"zqtext": "zqother", "zqcount": 9264}, "zqid00002")
_TYPED: dict[str, Any] = {"number": 7351, "boolean": True, "array": [7351], "object": {"zqinner": 7351}, "null": None}


class _Found(NamedTuple):
    """A call in a rendering: its body and where that stands."""

    body: Body
    begin: int
    end: int


def learn(render: Render) -> Syntax | None:
    """None when the calls do not appear, or in a form that is none of the known kinds."""
    one = render([FIRST])
    first = _find(render, one, FIRST)
    if first is None:
        return None
    before, behind = _markup(one[: first.begin], FIRST), one[first.end :]
    two = _two(render)
    first_of_two = _find(render, two, FIRST)
    second = first_of_two and _find(render, two, SECOND, first_of_two.end)
    if first_of_two is None or second is None:
        return _alone(first.body, before, behind)
    middle = _markup(two[first_of_two.end : second.begin], SECOND)
    return _split(first.body, before, middle, behind)


def _two(render: Render) -> str:
    """Empty when the template refuses more than one call."""
    try:
        return render([FIRST, SECOND])
    except TemplateError:
        return ""


def _markup(text: str, probe: Probe) -> str:
    return text.replace(probe.name, "{name}").replace(probe.id, "{id}")


def _alone(body: Body, before: str, behind: str) -> Syntax:
    """A template that writes one call only."""
    return Syntax("learned", _ended(body, behind), header=before.lstrip(), footer=behind)


def _split(body: Body, before: str, middle: str, behind: str) -> Syntax:
    """Tells section, header, footer and separator apart by what repeats."""
    before, middle = _numbered(before, middle)
    header = whole_marks(common_suffix(before, middle))
    rest = middle.removesuffix(header)
    footer = common_prefix(rest, behind)
    separator = rest[len(footer) :]
    section = before.removesuffix(header), behind[len(footer) :]
    if not separator.strip():
        footer, separator = footer + separator, ""
    return Syntax(
        "learned",
        _ended(body, footer or section[1]),
        header=header,
        footer=footer,
        section=(section[0].lstrip(), section[1].rstrip()),
        separator=separator,
    )


def _ended(body: Body, behind: str) -> Body:
    return replace(body, end=behind.strip()) if isinstance(body, Tagged) else body


def _numbered(before: str, middle: str) -> tuple[str, str]:
    """Calls that carry their number differ by it."""
    for first, second in (("0", "1"), ("1", "2")):
        pattern = r"(?<=[\W_]){}(?=\W)"
        one = re.sub(pattern.format(first), "{index}", before)
        other = re.sub(pattern.format(second), "{index}", middle)
        plain, numbered = common_suffix(before, middle), common_suffix(one, other)
        if "{index}" in numbered and "{name}" in numbered and "{name}" not in plain[1:]:
            return one, other
        if "{index}" in numbered and len(numbered) > len(plain) + len("{index}"):
            return one, other
    return before, middle


def whole_marks(header: str) -> str:
    """The repeated text may begin inside a mark that two different marks end alike with."""
    begin = re.search(r"[<\[{(]|(?<=\s)\S|^\w", header)
    closed = re.match(r"[^<\[{(\s]*[>\])]", header)
    if not closed:
        return header
    return header[begin.start() :] if begin else ""


_OPENING = re.compile(r"[<\[({][^\w\s>\])}]*$")  # a mark that is only beginning


# ---- the body


def _find(render: Render, text: str, probe: Probe, at: int = 0) -> _Found | None:
    for look in (_find_json, _find_python, _find_gemma):
        found = look(text, probe, at)
        if found is not None:
            return found
    return _find_tagged(render, text, probe, at)


def _find_json(text: str, probe: Probe, at: int) -> _Found | None:
    """The largest object around the arguments that parses: the arguments themselves, or the whole call."""
    best: _Found | None = None
    for begin in (found.start() for found in re.compile(r"\{").finditer(text, at)):
        end = json_end(text, begin)
        if end is None:
            continue
        try:
            value = json.loads(text[begin:end])
        except ValueError:
            continue
        body = _json_body(value, probe)
        if body is not None and (best is None or end - begin > best.end - best.begin):
            best = _Found(body, begin, end)
    return best


def _json_body(value: Any, probe: Probe) -> Body | None:
    if value == probe.arguments:
        return JsonArguments()
    if not isinstance(value, dict):
        return None
    if value == {probe.name: probe.arguments}:
        return KeyedJsonCall()
    keys = list(value)
    named = [key for key in keys if value[key] == probe.name]
    given = [key for key in keys if value[key] in (probe.arguments, json.dumps(probe.arguments))]
    if not named or not given:
        return None
    ids = [key for key in keys if key not in (named[0], given[0]) and isinstance(value[key], str | int)]
    id_key = next((key for key in ids if "id" in key), None)
    return JsonCall(named[0], given[0], id_key=id_key, id_first=id_key is not None and keys.index(id_key) == 0)


def _find_python(text: str, probe: Probe, at: int) -> _Found | None:
    call = re.compile(rf"{probe.name}\((.*?zqcount\s*=\s*{probe.arguments['zqcount']}\s*)\)", re.DOTALL)
    found = call.search(text, at)
    return _Found(PythonArguments(), found.start(1), found.end(1)) if found else None


def _find_gemma(text: str, probe: Probe, at: int) -> _Found | None:
    value, count = probe.arguments["zqtext"], probe.arguments["zqcount"]
    found = re.compile(rf"\{{[^{{}}]*zqtext:\s*(\W+){value}\1[^{{}}]*\}}").search(text, at)
    if found is None or f"zqcount:{count}" not in found[0].replace(" ", ""):
        return None
    return _Found(GemmaArguments(mark=found[1]), found.start(), found.end())


def _find_tagged(render: Render, text: str, probe: Probe, at: int) -> _Found | None:
    """key, value, key, value: what stands between gives the tags."""
    value, count = probe.arguments["zqtext"], probe.arguments["zqcount"]
    order = rf"zqtext(?P<string>.*?){value}(?P<between>.*?)zqcount(?P<other>.*?){count}(?P<behind>.*)"
    found = re.compile(order, re.DOTALL).search(text, at)
    if found is None:
        return None
    between, behind = found["between"].replace("zqtext", "{key}"), found["behind"].replace("zqcount", "{key}")
    close = _OPENING.sub("", common_prefix(between, behind))
    before = text[: found.start()]
    opening = common_suffix(before, between.removeprefix(close))
    close = between.removesuffix(opening)
    if not close.strip() or not behind.startswith(close):
        return None
    body = _tags(render, opening, found["string"], found["other"], close)
    end = found.start("behind") + len(close.replace("{key}", "zqcount"))
    return _Found(body, found.start() - len(opening), end)


def _tags(render: Render, opening: str, string: str, other: str, close: str) -> Tagged:
    plain = f"{opening}{{key}}{other}"
    cdata = "<![CDATA[<zq>" in render([Probe(FIRST.name, {"zqtext": "<zq>"}, FIRST.id)])
    if string == other:
        return Tagged(plain, close, end="", cdata=cdata)
    opens = {"string": f"{opening}{{key}}{string}", "": plain}
    behind = re.escape(close.partition("{key}")[0])
    for kind, value in _TYPED.items():
        typed = render([Probe(FIRST.name, {"zqtext": value}, FIRST.id)])
        found = re.search(rf"zqtext(.*?){re.escape(json.dumps(value))}{behind}", typed, re.DOTALL)
        if found and found[1] != other:
            opens[kind] = f"{opening}{{key}}{found[1]}"
    return Tagged(plain, close, end="", opens=opens, cdata=cdata)
