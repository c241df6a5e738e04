"""The Jinja sandbox that chat templates run in: Hugging Face's settings, plus limits on time and size. Pure; the only
state is the budget of the rendering under way, held in a context variable.

Where Hugging Face's own set-up fails on published templates, this one does not: templates may change lists and
mappings (they get copies), ``tojson`` takes generators, ``from_json`` exists, and nothing is HTML-escaped unasked.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from barrel_inference.errors import TemplateError


class Limits(NamedTuple):
    """Of one rendering. ``chars`` holds for the text and for every string made on the way."""

    chars: int = 16 << 20
    seconds: float = 10.0


DEFAULT_LIMITS = Limits()


class Budget:
    """What one rendering may still spend."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._steps = 0

    def step(self) -> None:
        """One turn of a loop or one call. Reading the clock costs more than a step, so only some read it."""
        self._steps += 1
        if self._steps % 128 == 0 and self._clock() > self._deadline:
            raise TemplateError(f"the chat template ran longer than {self._limits.seconds:g} s", timeout=True)

    def size(self, chars: int) -> None:
        if chars > self._limits.chars:
            raise TemplateError(f"the chat template made a text of more than {self._limits.chars} characters")


_budget: ContextVar[Budget] = ContextVar("budget")


class ChatEnvironment(SandboxedEnvironment):
    """Compiles a budget check into every loop, call, concatenation, sum, product and ``%``."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self.filters |= {"tojson": to_json, "from_json": json.loads, "fromjson": json.loads}
        self.filters |= {"safe": str, "escape": _escape, "e": _escape, "forceescape": _escape}
        self.filters |= {"format": _format, "indent": _indent, "replace": _replace}
        for name in ("batch", "center", "slice", "urlize", "wordwrap", "xmlattr"):  # no prompt needs them, bombs do
            del self.filters[name]
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metered().visit(super()._parse(source, name, filename))
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _budget.get()
        budget.step()
        _check_call(budget, __obj, args)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            budget.size(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.step()
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            budget.size(_size(left) * right if isinstance(right, int) else _size(right) * left)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        else:
            budget.size(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def tick(self) -> None:
        """Called by compiled templates at every turn of a loop."""
        _budget.get().step()

    def concat_texts(self, *parts: Any) -> str:
        """``a ~ b`` in compiled templates."""
        budget = _budget.get()
        texts = [str(part) for part in parts]
        budget.step()
        budget.size(sum(map(len, texts)))
        return "".join(texts)


def render(
    template: jinja2.Template, values: dict[str, Any], limits: Limits, clock: Callable[[], float] = time.monotonic
) -> str:
    """The text of a template. Raises TemplateError for whatever goes wrong in it."""
    budget = Budget(limits, clock)
    token = _budget.set(budget)
    try:
        return "".join(_bounded(template.generate(values), budget))
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateError("the chat template recurses without end") from None
    except Exception as error:  # whatever a template can do wrong, and they do
        raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
    finally:
        _budget.reset(token)


def _bounded(pieces: Iterator[str], budget: Budget) -> Iterator[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        budget.step()
        budget.size(total)
        yield piece


class Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Metered(NodeTransformer):
    """Adds the budget checks that the sandbox has no hook for."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_hook("tick", [], node.lineno)).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _hook("concat_texts", node.nodes, node.lineno)


def _hook(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and indent > 16:
        raise TemplateError("the chat template indents without reason")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, jinja2.Undefined):
        return None
    raise TypeError(f"{type(value).__name__} is not JSON")


def _escape(value: Any) -> str:
    text = str(value)
    for raw, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        text = text.replace(raw, escaped)
    return text


def _format(pattern: str, *args: Any, **kwargs: Any) -> str:
    _check_format(pattern)
    return str(pattern) % (kwargs or args)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = " " * min(width, 64) if isinstance(width, int) else width
    _budget.get().size(len(margin) * text.count("\n"))
    return str(do_indent(text, margin, first, blank))


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = str(value)
    _budget.get().size(len(text) + text.count(str(old)) * len(str(new)))
    return text.replace(str(old), str(new), count)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


_PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs"}


def _check_call(budget: Budget, function: Any, args: tuple[Any, ...]) -> None:
    """String methods that make much out of little."""
    text = getattr(function, "__self__", None)
    if not isinstance(text, str):
        return
    name = function.__name__
    if name in _PADDING and args:
        budget.size(operator.index(args[0]) * (text.count("\t") if name == "expandtabs" else 1))
    elif name == "replace" and len(args) >= 2:
        budget.size(len(text) + text.count(str(args[0])) * len(str(args[1])))
    elif name == "format":
        _check_format(text)


def _check_format(pattern: str) -> None:
    """A width in a format is the one way to make it grow without bound."""
    digits = 0
    for character in pattern:
        digits = digits + 1 if character.isdecimal() else 0
        if digits > 4 or (character == "*" and "%" in pattern):
            raise TemplateError("the chat template formats with an unreasonable width")


def _check_power(base: Any, exponent: Any) -> None:
    if abs(exponent) > 64 or abs(base) > 2**64:
        raise TemplateError("the chat template computes an unreasonable power")
