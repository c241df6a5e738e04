"""Tokens of a Go template as a tree. Pure; a tree never changes after it is built."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from barrel_inference.errors import TemplateError
from barrel_inference.registry.gotemplate.scan import Text, Token, scan, unquote

MAX_DEPTH = 64
MAX_DIGITS = 100
MAX_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Path:
    """``base`` with fields taken from it: ``.A.B`` (base ``.``), ``$x.A``, ``(…).A``."""

    base: str | Pipeline  # ".", "$name", or a pipeline in parentheses
    fields: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    line: int


Operand = Literal | Path | Call


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[tuple[Operand, ...], ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # := rather than =


@dataclass(frozen=True, slots=True)
class Print:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """if, with, range: ``kind`` tells which."""

    kind: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Include:
    name: str
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class Jump:
    kind: str  # break, continue


Node = Text | Print | Branch | Include | Jump


@dataclass(frozen=True, slots=True)
class Tree:
    nodes: tuple[Node, ...]
    defines: dict[str, tuple[Node, ...]] = field(default_factory=dict)

    def fields(self) -> frozenset[str]:
        """Every field name the template mentions anywhere."""
        bodies = [self.nodes, *self.defines.values()]
        return frozenset(name for body in bodies for node in body for name in _fields_of(node))


def parse(source: str) -> Tree:
    """``TemplateError`` names the line of what Go's own parser would refuse."""
    try:
        return _Parser(source).parse()
    except RecursionError:
        raise TemplateError("the template is nested too deeply") from None


class _Parser:
    def __init__(self, source: str) -> None:
        self._items = scan(source)
        self._defines: dict[str, tuple[Node, ...]] = {}
        self._depth = 0

    def parse(self) -> Tree:
        nodes, end = self._nodes(())
        if end:
            raise TemplateError(f"line {end[0].line}: {{{{{end[0].text}}}}} without a beginning")
        return Tree(nodes, self._defines)

    def _nodes(self, ends: tuple[str, ...]) -> tuple[tuple[Node, ...], list[Token]]:
        """Nodes up to an action that begins with one of ``ends``; that action is returned."""
        nodes: list[Node] = []
        for item in self._items:
            if isinstance(item, Text):
                nodes.append(item)
                continue
            word = item[0].text if item[0].kind == "word" else ""
            if word in ("end", "else"):
                if word not in ends:
                    raise TemplateError(f"line {item[0].line}: unexpected {{{{{word}}}}}")
                return tuple(nodes), item
            nodes.extend(self._action(word, item))
        if ends:
            raise TemplateError("unexpected end of the template: an {{end}} is missing")
        return tuple(nodes), []

    def _action(self, word: str, tokens: list[Token]) -> Iterator[Node]:
        match word:
            case "if" | "with" | "range":
                yield self._branch(word, tokens[1:], tokens[0].line)
            case "define" | "block":
                name, rest = _name(tokens)
                self._defines[name] = self._body(("end",), tokens[0].line)[0]
                if word == "block":
                    yield Include(name, _pipeline(rest, tokens[0].line))
            case "template":
                name, rest = _name(tokens)
                yield Include(name, _pipeline(rest, tokens[0].line) if rest else None)
            case "break" | "continue":
                yield Jump(word)
            case _:
                yield Print(_pipeline(tokens, tokens[0].line))

    def _branch(self, kind: str, tokens: list[Token], line: int) -> Branch:
        pipeline = _pipeline(tokens, line)
        body, end = self._body(("end", "else"), line)
        otherwise: tuple[Node, ...] = ()
        if end[0].text == "else":
            if len(end) > 1 and end[1].text in ("if", "with"):
                otherwise = (self._branch(end[1].text, end[2:], end[0].line),)
            else:
                otherwise, _ = self._body(("end",), line)
        return Branch(kind, pipeline, body, otherwise)

    def _body(self, ends: tuple[str, ...], line: int) -> tuple[tuple[Node, ...], list[Token]]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateError(f"line {line}: the template is nested deeper than {MAX_DEPTH}")
        body = self._nodes(ends)
        self._depth -= 1
        return body


def _name(tokens: list[Token]) -> tuple[str, list[Token]]:
    if len(tokens) < 2 or tokens[1].kind not in ("string", "raw"):
        raise TemplateError(f"line {tokens[0].line}: {tokens[0].text} needs a quoted name")
    return unquote(tokens[1].text), tokens[2:]


def _pipeline(tokens: list[Token], line: int) -> Pipeline:
    reader = _Tokens(tokens, line)
    pipeline = reader.pipeline(0)
    if reader.peek():
        raise reader.error()
    return pipeline


class _Tokens:
    """Reads one action's tokens from left to right."""

    def __init__(self, tokens: list[Token], line: int) -> None:
        self._tokens, self._at, self._line = tokens, 0, line

    def peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def error(self) -> TemplateError:
        token = self.peek()
        return TemplateError(f"line {self._line}: unexpected {token.text if token else 'end of the action'!r}")

    def pipeline(self, depth: int) -> Pipeline:
        if depth > MAX_DEPTH:
            raise TemplateError(f"line {self._line}: parentheses nested deeper than {MAX_DEPTH}")
        variables, declares = self._variables()
        commands = [self._command(depth)]
        while self._accept("|"):
            commands.append(self._command(depth))
        return Pipeline(tuple(commands), variables, declares)

    def _variables(self) -> tuple[tuple[str, ...], bool]:
        """``$x :=``, ``$i, $x :=`` or ``$x =`` at the beginning of a pipeline."""
        start, names = self._at, []
        while (token := self.peek()) and token.kind == "variable":
            names.append(token.text)
            self._at += 1
            if not self._accept(","):
                break
        mark = self.peek()
        if names and mark and mark.text in (":=", "="):
            self._at += 1
            return tuple(names), mark.text == ":="
        self._at = start
        return (), False

    def _command(self, depth: int) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while (token := self.peek()) and token.text not in ("|", ")"):
            operands.append(self._operand(token, depth))
        if not operands:
            raise self.error()
        return tuple(operands)

    def _operand(self, token: Token, depth: int) -> Operand:
        match token.kind:
            case "string" | "raw" | "char" | "number":
                self._at += 1
                return Literal(_literal(token))
            case "word":
                self._at += 1
                constants = {"true": True, "false": False, "nil": None}
                return Literal(constants[token.text]) if token.text in constants else Call(token.text, token.line)
            case "field":
                return Path(".", self._fields(first=True), token.line)
            case "variable":
                self._at += 1
                return Path(token.text, self._fields(), token.line)
        if self._accept("."):
            return Path(".", (), token.line)
        if self._accept("("):
            inner = self.pipeline(depth + 1)
            if not self._accept(")"):
                raise self.error()
            return Path(inner, self._fields(), token.line)
        raise self.error()

    def _fields(self, *, first: bool = False) -> tuple[str, ...]:
        names: list[str] = []
        while (token := self.peek()) and token.kind == "field" and (not token.spaced or (first and not names)):
            names.append(token.text[1:])
            self._at += 1
        return tuple(names)

    def _accept(self, text: str) -> bool:
        token = self.peek()
        if token and token.kind == "mark" and token.text == text:
            self._at += 1
            return True
        return False


def _literal(token: Token) -> Any:
    match token.kind:
        case "string":
            return unquote(token.text)
        case "raw":
            return token.text[1:-1]
        case "char":
            return ord(unquote(token.text)[:1] or "\0")
    return _number(token)


def _number(token: Token) -> int | float:
    text = token.text.lower()
    if len(text) <= MAX_DIGITS:
        if "x" not in text and ("." in text or "e" in text):
            value: int | float = float(text)
        else:
            value = int(text, 16 if "x" in text else 10)
        if math.isfinite(value) and (isinstance(value, float) or -MAX_NUMBER <= value < MAX_NUMBER):
            return value
    raise TemplateError(f"line {token.line}: the number {text[:20]} is too large")


def _fields_of(node: Node | Pipeline | Operand) -> Iterator[str]:
    match node:
        case Path(base=base, fields=fields):
            yield from fields
            if isinstance(base, Pipeline):
                yield from _fields_of(base)
        case Pipeline(commands=commands):
            for operand in (operand for command in commands for operand in command):
                yield from _fields_of(operand)
        case Print(pipeline=pipeline):
            yield from _fields_of(pipeline)
        case Include(pipeline=Pipeline() as given):
            yield from _fields_of(given)
        case Branch(pipeline=pipeline, body=body, otherwise=otherwise):
            yield from _fields_of(pipeline)
            for inner in (*body, *otherwise):
                yield from _fields_of(inner)
