"""The text of a Modelfile as commands, and back. Ollama's grammar: one command a line, its value bare, ``"…"`` or
``\"\"\"…\"\"\"`` (both may span lines), no escapes, comments only where a command is expected. Pure.

One deliberate difference: characters that Go does not print (U+00A0, U+3000, …) are kept in values, not dropped.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from barrel_inference.errors import DirectiveError, ModelfileError

DIRECTIVES = ("from", "parameter", "system", "template", "message", "license", "adapter")
ROLES = ("system", "user", "assistant")
MAX_BYTES = 16 << 20

_WORD = re.compile(r"[A-Za-z]+")
_PARAMETER = re.compile(r"[A-Za-z0-9_]+")
_BLANKS = re.compile(r"[ \t]*")
_LINE_END = re.compile(r"[\r\n]")


class Command(NamedTuple):
    """``key`` is a PARAMETER's name or a MESSAGE's role; ``line`` counts from 1."""

    name: str
    value: str
    key: str = ""
    line: int = 0


def decode_text(content: bytes) -> str:
    """UTF-8, or UTF-16 by its byte-order mark."""
    if len(content) > MAX_BYTES:
        raise ModelfileError(f"the Modelfile has {len(content)} bytes, the limit is {MAX_BYTES}")
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelfileError(f"the Modelfile is not valid {'UTF-16' if utf16 else 'UTF-8'}: {error.reason}") from None


def parse_commands(text: str) -> list[Command]:
    """All commands in order; ``ModelfileError`` and ``DirectiveError`` name the line."""
    return list(_Scanner(text).commands())


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("\ufeff")
        self._pos = 0

    def commands(self) -> list[Command]:
        found = []
        while self._skip_to_command():
            found.append(self._command())
        return found

    def _skip_to_command(self) -> bool:
        while self._pos < len(self._text):
            char = self._text[self._pos]
            if char == "#":
                end = _LINE_END.search(self._text, self._pos)
                self._pos = end.start() if end else len(self._text)
            elif char in " \t\r\n":
                self._pos += 1
            else:
                return True
        return False

    def _command(self) -> Command:
        line = self._line()
        name = self._directive(line)
        key = ""
        if name == "parameter":
            key = self._key(_PARAMETER, line, "a parameter's name")
        elif name == "message":
            key = self._key(_WORD, line, "a message's role")
            if key not in ROLES:
                raise self._error('message role must be one of "system", "user", or "assistant"', line)
        return Command(name, self._value(line), key, line)

    def _directive(self, line: int) -> str:
        match = _WORD.match(self._text, self._pos)
        word = match[0] if match else (self._text[self._pos : self._pos + 20].split() or ["?"])[0]
        self._pos = match.end() if match else self._pos
        if word.lower() not in DIRECTIVES or (self._pos < len(self._text) and self._text[self._pos] not in " \t\r\n"):
            known = ", ".join(directive.upper() for directive in DIRECTIVES)
            message = f"(line {line}): directive {word!r} is not supported; there are {known}"
            raise DirectiveError(message, directive=word, line=line)
        if self._pos >= len(self._text) or self._text[self._pos] in "\r\n":
            raise self._error(f"{word.upper()} needs a value", line)
        self._pos = _skip_blanks(self._text, self._pos)
        return word.lower()

    def _key(self, rule: re.Pattern[str], line: int, what: str) -> str:
        match = rule.match(self._text, self._pos)
        end = match.end() if match else self._pos
        if match is None or end >= len(self._text) or self._text[end] not in " \t":
            raise self._error(f"unexpected EOF: expected {what} and a value", line)
        self._pos = _skip_blanks(self._text, end)
        return match[0]

    def _value(self, line: int) -> str:
        """Up to the first line end at which the quotes are closed."""
        start = self._pos
        while True:
            end = _LINE_END.search(self._text, self._pos)
            self._pos = end.start() if end else len(self._text)
            value = unquote(self._text[start : self._pos].strip())
            if value is not None:
                return value
            if end is None:
                raise self._error("unexpected EOF: a quoted value does not end", line)
            self._pos += 1

    def _line(self) -> int:
        before = self._text[: self._pos]
        return 1 + before.count("\n") + before.replace("\r\n", "").count("\r")

    @staticmethod
    def _error(message: str, line: int) -> ModelfileError:
        return ModelfileError(f"(line {line}): {message}", line=line)


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def unquote(text: str) -> str | None:
    """The value without its quotes; None while they are still open."""
    for mark in ('"""', '"'):
        if text.startswith(mark):
            closed = len(text) >= 2 * len(mark) and text.endswith(mark)
            return text[len(mark) : -len(mark)] if closed else None
    return text


def format_command(command: Command) -> str:
    """One command as text; ``ModelfileError`` for a value that the grammar cannot express."""
    head = f"{command.name.upper()} {command.key} " if command.key else f"{command.name.upper()} "
    for written in (command.value, f'"{command.value}"', f'"""{command.value}"""'):
        if _reads_back(written, command.value):
            return head + written
    raise ModelfileError(f'{head.strip()} holds """ at the end of a line, which a Modelfile cannot express')


def _reads_back(written: str, value: str) -> bool:
    scanner = _Scanner(written + "\n")
    try:
        return scanner._value(0) == value and scanner._pos == len(written)
    except ModelfileError:
        return False
