"""Reading markup that arrives piece by piece: patterns with fields, and where a JSON value ends. Pure.

Everything here answers one of three things: how far it read, ``None`` for "the text so far may yet become it", or it
raises MalformedError.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple


class MalformedError(Exception):
    """The text cannot be, and cannot become, what was looked for."""


class Match(NamedTuple):
    end: int
    fields: dict[str, str]


_FIELDS = {
    "name": re.compile(r"[\w./-]+"),
    "id": re.compile(r"[\w.:-]*"),
    "index": re.compile(r"\d+"),
    "key": re.compile(r"[^\n<>\[\]\"|/][^\n<>\[\]\"|]*"),
}
_SPLIT = re.compile(r"\{(name|id|index|key)\}")
_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(r"\S+")


class Pattern:
    """Markup with fields, such as ``<invoke name="{name}">``. Where it has white space any amount will do, also none,
    and the same around it: models are careless about it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._parts = _SPLIT.split(source)  # literal, field, literal, field, …, literal

    def __repr__(self) -> str:
        return f"Pattern({self.source!r})"

    @cached_property
    def prefix(self) -> str:
        """The text by which it is noticed: what comes before the first field, without outer white space."""
        return self._parts[0].strip()

    def fill(self, **fields: str) -> str:
        """The markup with its fields, as a model is to write it."""
        return _SPLIT.sub(lambda match: fields.get(match[1], ""), self.source)

    def match(self, text: str, at: int, *, final: bool = False) -> Match | None:
        """``final``: nothing more will come, so that a missing end is no reason to wait."""
        fields: dict[str, str] = {}
        for index, part in enumerate(self._parts):
            if index % 2:
                behind = _TOKEN.match(self._parts[index + 1])
                end = _field(part, text, at, fields, final, behind[0] if behind else "")
            else:
                end = _literal(part, text, at)
            if end is None:
                return None
            at = end
        return Match(at, fields)


def _field(name: str, text: str, at: int, fields: dict[str, str], final: bool, behind: str) -> int | None:
    """``behind``: the text that follows the field at once, if any does."""
    found = _FIELDS[name].match(text, at)
    if found is None:
        if at < len(text):
            raise MalformedError
        return None
    end = found.end()
    if name == "key" and behind and at < (cut := text.find(behind, at)) < end:  # keys may hold nearly everything
        end = cut
    if end == len(text) and not final:
        return None
    fields[name] = text[at:end]
    return end


def _literal(part: str, text: str, at: int) -> int | None:
    for token in _TOKEN.findall(part):
        at = skip_space(text, at)
        if not text.startswith(token, at):
            if token.startswith(text[at:]):
                return None
            raise MalformedError
        at += len(token)
    return skip_space(text, at) if part[-1:].isspace() else at


def skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


_BRACKET = re.compile(r'["{}\[\]]')
_QUOTED = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class JsonEnd:
    """Looks for where the object or array that begins at ``at`` is balanced, in a text that grows: nothing is looked
    at twice."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int | None:
        """None while it is not. ``text`` begins with what it was the last time."""
        while (found := self._next(text)) is not None:
            self._at = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth <= 0:
                    return self._at
        return None

    def _next(self, text: str) -> re.Match[str] | None:
        """The next bracket or quotation mark that counts."""
        if not self._in_string:
            return _BRACKET.search(text, self._at)
        quoted = _QUOTED.match(text, self._at)
        self._at = quoted.end() if quoted else self._at
        return _BRACKET.match(text, self._at)


def json_end(text: str, at: int) -> int | None:
    """Where the object or array that begins at ``at`` is balanced; None while it is not."""
    return JsonEnd(at).find(text)


def held_back(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a marker."""
    longest = max(map(len, markers), default=0) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0


def common_prefix(one: str, other: str) -> str:
    """What both begin with."""
    if other.startswith(one):  # by far the most frequent case, and prompts are long
        return one
    size = min(len(one), len(other))
    return next((one[:index] for index in range(size) if one[index] != other[index]), one[:size])


def common_suffix(one: str, other: str) -> str:
    return common_prefix(one[::-1], other[::-1])[::-1]


def first(text: str, markers: tuple[str, ...]) -> tuple[int, str] | None:
    """The earliest marker in ``text``; of two at one place the longer."""
    found = [(text.find(marker), -len(marker), marker) for marker in markers]
    hits = [hit for hit in found if hit[0] >= 0]
    return (min(hits)[0], min(hits)[2]) if hits else None
