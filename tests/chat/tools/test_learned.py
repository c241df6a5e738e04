"""Syntaxes that nobody has described, learned from how a template writes calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from barrel_inference.chat.output import OutputParser, Shape
from barrel_inference.chat.tools.learned import FIRST, SECOND, Probe, learn
from barrel_inference.chat.tools.syntax import Syntax, write_calls
from barrel_inference.errors import TemplateError
from tests.chat.pieces import fed

Write = Callable[[Sequence[Probe]], str]


def joined(begin: str, separator: str, end: str, each: Callable[[int, Probe], str]) -> Write:
    return lambda calls: begin + separator.join(each(index, call) for index, call in enumerate(calls)) + end


def tagged(call: Probe, form: str) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in call.arguments.items()}
    return "".join(form.format(key=key, value=value) for key, value in texts.items())


def cdata(call: Probe) -> Probe:
    """As XML has text that looks like markup."""
    texts = {
        key: f"<![CDATA[{value}]]>" if isinstance(value, str) and "<" in value else value
        for key, value in call.arguments.items()
    }
    return call._replace(arguments=texts)


def typed(call: Probe) -> str:
    kinds = {str: "s", int: "n", bool: "b", list: "l", dict: "o", type(None): "z"}
    return "".join(
        f"[arg {key}:{kinds[type(value)]}]{value if isinstance(value, str) else json.dumps(value)}[/arg]"
        for key, value in call.arguments.items()
    )


def whole(call: Probe, **more: Any) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments, **more})


INVENTED: dict[str, Write] = {
    "object in marks": joined("", "\n", "", lambda _, c: f"«call»{whole(c)}«/call»"),
    "object per line": joined("<calls>\n", "\n", "\n</calls>", lambda _, c: whole(c)),
    "array": joined("<|calls|>[", ", ", "]", lambda _, c: whole(c)),
    "array with ids": joined("TOOLS:[", ",", "]", lambda _, c: whole(c, call_id=c.id)),
    "other keys": joined("<f>", "", "</f>", lambda _, c: json.dumps({"tool": c.name, "input": c.arguments})),
    "keyed": joined("<t>[", ",", "]</t>", lambda _, c: json.dumps({c.name: c.arguments})),
    "name then object": joined("", "", "", lambda _, c: f"<@{c.name}@>{json.dumps(c.arguments)}<@@>"),
    "section and name": joined("<<", "", ">>", lambda _, c: f"<go>{c.name}<with>{json.dumps(c.arguments)}</go>"),
    "numbered": joined("<s>", "", "</s>", lambda i, c: f"<c>{c.name}:{i}<a>{json.dumps(c.arguments)}</c>"),
    "with id": joined("<s>", "", "</s>", lambda _, c: f"<c>{c.id}<n>{c.name}<a>{json.dumps(c.arguments)}</c>"),
    "tags": joined(
        "", "\n", "", lambda _, c: f"<do {c.name}>\n{tagged(c, '<p {key}>{value}</p>{nl}'.replace('{nl}', ''))}</do>"
    ),
    "pairs": joined("<x>", "", "</x>", lambda _, c: f"<c>{c.name}{tagged(c, '<k>{key}</k><v>{value}</v>')}</c>"),
    "XML": joined("", "\n", "", lambda _, c: f"<c {c.name}>{tagged(cdata(c), '<p {key}>{value}</p>')}</c>"),
    "own closing tags": joined("", "", "", lambda _, c: f"<c:{c.name}>{tagged(c, '<{key}>{value}</{key}>')}</c>"),
    "typed tags": joined("", "", "", lambda _, c: f"[fn {c.name}]{typed(c)}[/fn]"),
    "python": joined(
        "<py>[", ", ", "]</py>", lambda _, c: f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})"
    ),
}


def learned(write: Write) -> Syntax:
    syntax = learn(write)
    assert syntax is not None
    return syntax


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_syntax_is_learned(name: str) -> None:
    write = INVENTED[name]
    syntax = learned(write)
    markup = "<b> & <i>" if name == "XML" else "Rome"
    others = [Probe("book_flight", {"to": markup, "seats": 2}, "id7654321"), Probe("stop", {}, "id1234567")]
    schema = {"properties": {"to": {"type": "string"}, "seats": {"type": "integer"}}}
    tools = {"book_flight": schema, "stop": {}, FIRST.name: {}, SECOND.name: {}}
    for calls in ([FIRST], [FIRST, SECOND], others[:1], others):
        events = fed(OutputParser(Shape(None, syntax), tools), "So.\n" + write(calls))
        assert events == [("text", "So."), *(("call", (call.name, call.arguments)) for call in calls)]


@pytest.mark.parametrize("name", INVENTED)
def test_what_is_learned_can_be_written(name: str) -> None:
    syntax = learned(INVENTED[name])
    text = write_calls(syntax, [("go", {"to": "Rome"}), ("stop", {})])
    tools = {"go": {"properties": {"to": {"type": "string"}}}, "stop": {}}
    assert fed(OutputParser(Shape(None, syntax), tools), text) == [
        ("call", ("go", {"to": "Rome"})),
        ("call", ("stop", {})),
    ]


def test_nothing_is_learned_from_a_template_without_calls() -> None:
    assert learn(lambda calls: "nothing to see") is None
    assert learn(lambda calls: " ".join(call.name for call in calls)) is None


def test_a_template_that_refuses_two_calls_teaches_one() -> None:
    def write(calls: Sequence[Probe]) -> str:
        if len(calls) > 1:
            raise TemplateError("one at a time")
        return f"<one>{whole(calls[0])}</one>"

    syntax = learned(write)
    assert (syntax.header, syntax.footer) == ("<one>", "</one>")
