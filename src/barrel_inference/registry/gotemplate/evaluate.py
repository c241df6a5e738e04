"""Runs a template tree over plain values. A sandbox by construction: fields of dicts, a fixed table of functions,
limits on steps, output and depth. An Evaluator owns the output and variables of one run."""

from __future__ import annotations

import datetime
import re
from typing import Any

from barrel_inference.errors import TemplateError
from barrel_inference.registry.gotemplate.functions import cost, functions, is_true, to_text
from barrel_inference.registry.gotemplate.parse import (
    Branch,
    Call,
    Include,
    Jump,
    Literal,
    Node,
    Operand,
    Path,
    Pipeline,
    Print,
    Tree,
)
from barrel_inference.registry.gotemplate.scan import Text

MAX_STEPS = 500_000  # a thousand messages take about 50,000, and a second
MAX_OUTPUT_CHARS = 64 << 20
STEP_CHARS = 512  # of a function's arguments and result; so many count as a step
MAX_DEPTH = 32


class Struct(dict[str, Any]):
    """Stands for a Go struct: reached by Go's field names, kept and printed under its JSON names, never undefined."""


class _Jump(Exception):  # noqa: N818 - control flow
    """break or continue of the innermost range."""


class _Cut(Exception):  # noqa: N818 - control flow
    """The run ends here: see ``cut_field``."""


class Evaluator:
    """``cut_field``: everything after the first use of this field is left out (the answer is written there)."""

    def __init__(self, tree: Tree, today: datetime.date, cut_field: str | None = None) -> None:
        self._tree = tree
        self._functions = functions(today)
        self._cut_field = cut_field
        self._cut = False
        self._output: list[str] = []
        self._size = self._steps = self._depth = 0
        self._scopes: list[dict[str, Any]] = []

    def run(self, data: dict[str, Any]) -> str:
        self._scopes = [{"$": data}]
        try:
            self._run(self._tree.nodes, data)
        except _Cut:
            pass
        except _Jump:
            raise TemplateError("break or continue outside a range") from None
        except RecursionError:
            raise TemplateError("the template is nested too deeply") from None
        return "".join(self._output)

    def _run(self, nodes: tuple[Node, ...], dot: Any) -> None:
        for node in nodes:
            self._step()
            match node:
                case Text(text):
                    self._write(text)
                case Print(pipeline):
                    value = self._pipeline(pipeline, dot)
                    if not pipeline.variables:
                        self._write(to_text(value))
                    self._cut_here()
                case Branch():
                    self._branch(node, dot)
                case Include(name, given):
                    self._include(name, None if given is None else self._pipeline(given, dot))
                case Jump(kind):
                    raise _Jump(kind)

    def _branch(self, node: Branch, dot: Any) -> None:
        self._scopes.append({})
        try:
            value = self._pipeline(node.pipeline, dot)
            self._cut_here()
            if node.kind == "range":
                self._range(node, value, dot)
            elif is_true(value):
                self._run(node.body, value if node.kind == "with" else dot)
            else:
                self._run(node.otherwise, dot)
        finally:
            self._scopes.pop()

    def _range(self, node: Branch, value: Any, dot: Any) -> None:
        items = _pairs(value)
        if not items:
            self._run(node.otherwise, dot)
        for key, item in items:
            self._step()
            self._scopes.append(_loop_variables(node.pipeline.variables, key, item))
            try:
                self._run(node.body, item)
            except _Jump as jump:
                if jump.args[0] == "break":
                    break
            finally:
                self._scopes.pop()

    def _include(self, name: str, dot: Any) -> None:
        if name not in self._tree.defines:
            raise TemplateError(f"template {name!r} is not defined")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateError(f"templates include each other deeper than {MAX_DEPTH}")
        outer, self._scopes = self._scopes, [{"$": dot}]
        try:
            self._run(self._tree.defines[name], dot)
        finally:
            self._scopes = outer
        self._depth -= 1

    # ---- values

    def _pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        given: tuple[Any, ...] = ()
        for command in pipeline.commands:
            given = (self._command(command, dot, given),)
        if pipeline.variables:
            self._assign(pipeline, given[0])  # a range gives them their items' values after this
        return given[0]

    def _assign(self, pipeline: Pipeline, value: Any) -> None:
        name = pipeline.variables[-1]
        if pipeline.declares:
            self._scopes[-1][name] = value
            return
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name] = value
                return
        raise TemplateError(f"undefined variable {name}")

    def _command(self, command: tuple[Operand, ...], dot: Any, given: tuple[Any, ...]) -> Any:
        self._step()
        head, *rest = command
        if isinstance(head, Call):
            return self._call(head, rest, dot, given)
        if rest or given:
            raise TemplateError("only functions take arguments")
        return self._operand(head, dot)

    def _call(self, call: Call, rest: list[Operand], dot: Any, given: tuple[Any, ...]) -> Any:
        if call.function in ("and", "or"):
            return self._and_or(call.function == "and", rest, dot, given)
        function = self._functions.get(call.function)
        if function is None:
            raise TemplateError(f"line {call.line}: function {call.function!r} is not defined")
        arguments = (*(self._operand(operand, dot) for operand in rest), *given)
        try:
            self._pay(cost(call.function, arguments))
            result = function(*arguments)
            self._pay(len(result) if isinstance(result, str) else 0)
            return result
        except TemplateError as error:
            raise TemplateError(f"line {call.line}: {error.message}") from None
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise TemplateError(f"line {call.line}: {call.function}: wrong arguments ({error})") from None

    def _and_or(self, is_and: bool, rest: list[Operand], dot: Any, given: tuple[Any, ...]) -> Any:
        value: Any = None
        for operand in rest:
            value = self._operand(operand, dot)
            if is_true(value) != is_and:
                return value
        return given[0] if given else value

    def _operand(self, operand: Operand, dot: Any) -> Any:
        match operand:
            case Literal(value):
                return value
            case Call():
                return self._call(operand, [], dot, ())
            case Path(base, fields, line):
                return self._fields(self._base(base, dot, line), fields, line)

    def _base(self, base: str | Pipeline, dot: Any, line: int) -> Any:
        if isinstance(base, Pipeline):
            return self._pipeline(base, dot)
        if base == ".":
            return dot
        for scope in reversed(self._scopes):
            if base in scope:
                return scope[base]
        raise TemplateError(f"line {line}: undefined variable {base}")

    def _fields(self, value: Any, fields: tuple[str, ...], line: int) -> Any:
        for name in fields:
            self._step()
            self._cut = self._cut or name == self._cut_field
            if value is None:
                return None
            if not isinstance(value, dict):
                raise TemplateError(f"line {line}: no field {name} in {type(value).__name__}")
            value = value[name] if name in value else _missing(value, name)
        return value

    # ---- limits

    def _pay(self, chars: int) -> None:
        """What a function has to read and what it has made, so that texts cannot grow without end."""
        self._step(chars // STEP_CHARS)

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise TemplateError(f"the template takes more than {MAX_STEPS} steps")

    def _write(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_OUTPUT_CHARS:
            raise TemplateError(f"the template writes more than {MAX_OUTPUT_CHARS} characters")
        self._output.append(text)

    def _cut_here(self) -> None:
        if self._cut:
            raise _Cut


def _missing(value: dict[str, Any], name: str) -> Any:
    """A struct's field by its JSON name (ToolCallID is tool_call_id); nothing in a plain map."""
    if not isinstance(value, Struct):
        return None
    return value.get(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(), "")


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    match value:
        case None:
            return []
        case dict():
            return list(value.items())
        case list() | tuple():
            return list(enumerate(value))
        case int() if not isinstance(value, bool) and 0 <= value <= MAX_STEPS:
            return [(i, i) for i in range(value)]
    raise TemplateError(f"cannot range over {type(value).__name__}")


def _loop_variables(names: tuple[str, ...], key: Any, item: Any) -> dict[str, Any]:
    return dict(zip(names, (key, item) if len(names) == 2 else (item,), strict=False))
