"""Events of a parser in a form that does not depend on how the text was cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from barrel_inference.chat.events import CallArguments, CallEnded, CallStarted, Content, Piece, Reasoning
from barrel_inference.chat.output import Parser

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
CLOCK = {"type": "object", "properties": {"zone": {"type": "string"}}}
TOOLS = {"get_weather": WEATHER, "get_time": CLOCK}
DEFINITIONS = [
    {"type": "function", "function": {"name": name, "description": f"about {name}", "parameters": schema}}
    for name, schema in TOOLS.items()
]


def merged(events: Iterable[Piece]) -> list[tuple[str, Any]]:
    """("text", …), ("thought", …), ("call", (name, arguments)), ("unfinished", (name, arguments so far, all of it));
    neighbours of a kind as one."""
    found: list[tuple[str, Any]] = []
    name = arguments = ""
    for event in events:
        match event:
            case Content(text=text) | Reasoning(text=text):
                kind = "text" if isinstance(event, Content) else "thought"
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + text)
                else:
                    found.append((kind, text))
            case CallStarted(name=name):
                arguments = ""
            case CallArguments(text=text):
                arguments += text
            case CallEnded(unfinished=""):
                found.append(("call", (name, json.loads(arguments))))
            case CallEnded(unfinished=text):
                found.append(("unfinished", (name, arguments, text)))
    return found


def fed(parser: Parser, text: str, cuts: Sequence[int] = ()) -> list[tuple[str, Any]]:
    """What comes out when the text arrives cut at these places."""
    events: list[Piece] = []
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(text)]):
        events += parser.feed(text[begin:end])
    return merged(events + parser.finish())
