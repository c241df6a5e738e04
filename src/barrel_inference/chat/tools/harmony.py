"""gpt-oss: an answer is a row of messages, each with a channel and perhaps a recipient. Pure; a parser belongs to the
one who feeds it. Not through ``openai-harmony``, which fetches a vocabulary from the network when it is first used; the
tests hold ours against it.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from barrel_inference.chat.events import Content, Piece, Reasoning
from barrel_inference.chat.output import CallEvents, GrowingCall
from barrel_inference.chat.tools.scan import first, held_back
from barrel_inference.chat.tools.syntax import Call, Tools, quote

MARKERS = ("<|start|>", "<|channel|>", "<|message|>")
THOUGHT = "<|channel|>analysis<|message|>"  # opens a thought at the end of a prompt
THOUGHT_END = "<|end|>"
CALL = "<|channel|>commentary to=functions."  # the usual of several ways to begin a call
NEXT = "<|start|>assistant"
ANSWER = "<|channel|>final<|message|>"

_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w./-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def is_harmony(template: str) -> bool:
    return all(marker in template for marker in MARKERS)


class HarmonyParser:
    """``thinking``: the prompt ends inside a thought. ``sure_calls``: a grammar sees to those that begin with ``CALL``,
    so that their arguments come out as they are written."""

    def __init__(self, *, thinking: bool = False, sure_calls: bool = False) -> None:
        self._sure_calls = sure_calls
        self._calls = CallEvents()
        self._growing: GrowingCall | None = None
        self._text = ""
        self._mode: Literal["header", "body", "call", "sure call"] = "body" if thinking else "header"
        self._kind: type[Content | Reasoning] = Reasoning if thinking else Content
        self._header = ""
        self._first = True
        self._events: list[Piece] = []

    @property
    def thinking(self) -> bool:
        return self._mode == "body" and self._kind is Reasoning

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        return self._run(final=False)

    def finish(self) -> list[Piece]:
        return self._run(final=True)

    def _run(self, *, final: bool) -> list[Piece]:
        steps = {
            "header": self._read_header,
            "body": self._read_body,
            "call": self._read_call,
            "sure call": self._read_sure_call,
        }
        while self._text and steps[self._mode](final):
            pass
        if final and self._growing:
            self._end_sure_call()
        events, self._events = self._events, []
        return events

    def _read_header(self, final: bool) -> bool:
        head, found, rest = self._text.partition("<|message|>")
        if self._first and not _may_begin(head.lstrip()):
            self._begin("", self._text)  # an answer without any structure is an answer all the same
        elif found:
            self._begin(head, rest)
        elif final:
            self._begin("", self._text)
        else:
            return False
        return True

    def _begin(self, header: str, rest: str) -> None:
        channel = _CHANNEL.search(header)
        self._header = header
        self._first = False
        self._kind = Reasoning if channel and channel[1] == "analysis" else Content
        recipient = _RECIPIENT.search(header)
        self._mode = "call" if recipient else "body"
        self._text = rest
        if recipient and self._sure_calls and CALL in header:
            started = self._calls.start(recipient[1])
            self._events.append(started)
            self._growing = GrowingCall(started.call, 0)
            self._mode = "sure call"

    def _read_body(self, final: bool) -> bool:
        hit = first(self._text, _ENDS)
        if hit is None:
            ready = len(self._text) - (0 if final else held_back(self._text, _ENDS))
            self._emit(self._text[:ready])
            self._text = self._text[ready:]
            return False
        at, mark = hit
        self._emit(self._text[:at])
        self._text = self._text[at + len(mark) :]
        self._mode = "header"
        return True

    def _read_call(self, final: bool) -> bool:
        hit = first(self._text, _ENDS)
        if hit is None and not final:
            return False
        body, behind = (self._text, "") if hit is None else (self._text[: hit[0]], self._text[hit[0] + len(hit[1]) :])
        self._text = behind
        self._mode = "header"
        call = _call(self._header, body)
        if call is None:
            self._emit(f"{self._header}<|message|>{body}")
        else:
            self._events += self._calls.of(call)
        return True

    def _read_sure_call(self, final: bool) -> bool:
        if self._growing is None:
            self._mode = "body"  # what there may be behind the arguments
            return True
        self._events += self._growing.grow(self._text)
        if self._growing.end is None:
            return False
        self._end_sure_call()
        return True

    def _end_sure_call(self) -> None:
        growing, self._growing = self._growing, None
        if growing is not None:
            end = growing.end or len(self._text)
            self._events.append(growing.close(self._text, f"{self._header}<|message|>{self._text[:end]}"))
            self._text = self._text[end:]

    def _emit(self, text: str) -> None:
        if text:
            self._events.append(self._kind(text=text))


def _may_begin(head: str) -> bool:
    return any(mark.startswith(head) or head.startswith(mark) for mark in ("<|", "to="))


def _call(header: str, body: str) -> Call | None:
    recipient = _RECIPIENT.search(header)
    try:
        arguments = json.loads(body or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    if recipient is None or not isinstance(arguments, dict):
        return None
    return Call(recipient[1], json.dumps(arguments, ensure_ascii=False))


def answers(alternatives: str, *, thought: bool) -> str:
    """A Lark grammar of one message behind a thought, or of the first of an answer (the prompt has begun that)."""
    return f"start: {quote(NEXT) if thought else ''} ({alternatives})\n"


def calls_rule(tools: Tools) -> str:
    """Lark alternatives: one call of one of the tools, from behind ``NEXT`` on."""
    return " | ".join(_call_rule(name, schema) for name, schema in tools.items())


def sure_calls_rule(tools: Tools) -> str:
    """A Lark grammar of what follows ``CALL``: the rest of a header, as models write it, and the arguments."""
    head = '(" "? "<|constrain|>json" | " json")? " "? "<|message|>"'
    each = (f"({quote(name)} {head} %json {json.dumps(tools[name], ensure_ascii=False)})" for name in tools)
    return f"start: {' | '.join(each)}\n"


def _call_rule(name: str, schema: Mapping[str, Any]) -> str:
    head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"({quote(head)} %json {json.dumps(schema, ensure_ascii=False)})"
