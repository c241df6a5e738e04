"""Go template text as tokens: literal text, and what stands between ``{{`` and ``}}``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from barrel_inference.errors import TemplateError

MAX_TEMPLATE_CHARS = 1 << 20

_OPEN = re.compile(r"\{\{(?:-(?=\s))?")
_TOKEN = re.compile(
    r"""\s+
    | (?P<comment>/\*.*?\*/)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<raw>`[^`]*`)
    | (?P<char>'(?:[^'\\\n]|\\.)+')
    | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))
    | (?P<field>\.[A-Za-z_]\w*)
    | (?P<variable>\$\w*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>:=|[|()=,.])""",
    re.VERBOSE | re.DOTALL,
)
_CLOSE = re.compile(r"(?P<trim>\s-)?\}\}")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"', "'": "'"}


class Token(NamedTuple):
    """``spaced``: white space came before; ``.A .B`` are two operands, ``.A.B`` is one."""

    kind: str
    text: str
    line: int
    spaced: bool = False


class Text(NamedTuple):
    text: str


def scan(source: str) -> Iterator[Text | list[Token]]:
    """Text and actions in turn, white space trimmed as the markers ask; ``TemplateError`` names the line."""
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateError(f"the template has {len(source)} characters, the limit is {MAX_TEMPLATE_CHARS}")
    position, trim_next, lines = 0, False, _Lines(source)
    while True:
        opening = _OPEN.search(source, position)
        text = source[position : opening.start() if opening else len(source)]
        if trim_next:
            text = text.lstrip(" \t\r\n")
        if opening and opening[0].endswith("-"):
            text = text.rstrip(" \t\r\n")
        if text:
            yield Text(text)
        if opening is None:
            return
        tokens, position, trim_next = _scan_action(source, opening.end(), lines)
        if tokens:
            yield tokens


class _Lines:
    """The line of each position; asked for in ascending order, so that all of them take one walk."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position, self._line = 0, 1

    def at(self, position: int) -> int:
        self._line += self._source.count("\n", self._position, position)
        self._position = position
        return self._line


def _scan_action(source: str, position: int, lines: _Lines) -> tuple[list[Token], int, bool]:
    tokens: list[Token] = []
    spaced = False
    while not (closing := _CLOSE.match(source, position)):
        match = _TOKEN.match(source, position)
        if match is None:
            raise TemplateError(
                f"line {lines.at(position)}: unexpected {source[position : position + 10]!r} in the template"
            )
        if match.lastgroup and match.lastgroup != "comment":
            tokens.append(Token(match.lastgroup, match[0], lines.at(position), spaced))
        spaced = match.lastgroup is None
        position = match.end()
    return tokens, closing.end(), closing["trim"] is not None


def unquote(text: str) -> str:
    """The value of a quoted Go string."""
    return _ESCAPE.sub(_unescape, text[1:-1])


def character(code: int) -> str:
    """The character of a code point; U+FFFD for what is none, halves of surrogate pairs included."""
    return chr(code) if 0 <= code < 0xD800 or 0xE000 <= code <= 0x10FFFF else "\ufffd"


def _unescape(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal or match[4]:
        code = int(hexadecimal, 16) if hexadecimal else int(match[4], 8)
        return character(code)
    return _SIMPLE.get(match[5], match[5])
