"""Moving parts that agents put at the head of prompts: without them the next prompt begins as the last one did. Pure.

``billing``: the header that Claude Code writes above its system message, of which a part changes with every request; it
says nothing to a model. ``clock``: that, and the time of day behind a date, which stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from barrel_inference.config import Steady
from barrel_inference.types import Message

_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\n]*(?:;|(?=\n|\Z)))*[ \t]*\n*")
_CLOCK = re.compile(r"\b(\d{4}-\d\d-\d\d)[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?(?!\d)")


def messages(given: Iterable[Message], level: Steady) -> tuple[Message, ...]:
    """System messages without their moving parts; one of which nothing is left is left out."""
    if level == "off":
        return tuple(given)
    return tuple(steady for message in given if (steady := _message(message, level)) is not None)


def _message(message: Message, level: Steady) -> Message | None:
    if message.role not in ("system", "developer"):
        return message
    if isinstance(message.content, str):
        content = text(message.content, level)
        return msgspec.structs.replace(message, content=content) if content or not message.content else None
    parts = [{**part, "text": text(part["text"], level)} if "text" in part else part for part in message.content or ()]
    return msgspec.structs.replace(message, content=[part for part in parts if part.get("text") != ""])


def text(system: str, level: Steady) -> str:
    if level == "off":
        return system
    found = _BILLING.sub("", system)
    return _CLOCK.sub(r"\1", found) if level == "clock" else found
