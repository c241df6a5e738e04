"""The Jinja sandbox that chat templates run in: Hugging Face's settings, plus limits on time and size (``budget``).

Where Hugging Face's own set-up fails on published templates, this one does not: templates may change lists and
mappings (they get copies), ``tojson`` takes generators, ``from_json`` exists, and nothing is HTML-escaped unasked.
Of Jinja's filters and Python's methods there are those that prompts are made with.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_environment, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, do_round, sync_do_sum
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from barrel_inference.chat.templates import budget
from barrel_inference.chat.templates.budget import Budget, Limits, current
from barrel_inference.errors import TemplateError

MAX_SOURCE_CHARS = 1 << 20
MAX_INDENT = 64
MAX_PRECISION = 32
MAX_DATE_CHARS = 256

_READ = "abs attr count d default first float int items last length list map"
_CHOOSE = "reject rejectattr reverse select selectattr"
_WRITE = "capitalize lower string title trim truncate upper urlencode"
_COMPARE = "dictsort groupby max min sort unique"
_COMPARING_TESTS = "in eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >="
_METHODS: dict[type, str] = {
    str: "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit isidentifier "
    "islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix "
    "replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill",
    list: "append clear copy count extend index insert pop remove reverse sort",
    tuple: "count index",
    dict: "clear copy get items keys pop popitem setdefault update values",
}
_ALLOWED = {kind: frozenset(names.split()) for kind, names in _METHODS.items()}


class ChatEnvironment(SandboxedEnvironment):
    """Compiles a budget check into every loop, call, slice, comparison and operation that makes something."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # it would compute constants without a budget
            extensions=[Generation, loopcontrols],
            finalize=_written,
        )
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(_date_pattern(pattern))
        del self.globals["lipsum"]
        weighed = {name: self.filters[name] for name in f"{_WRITE} {_COMPARE}".split()} | _FILTERS
        self.filters = {name: _filter(self.filters[name]) for name in f"{_READ} {_CHOOSE}".split()}
        self.filters |= {name: _filter(function, weighs=True) for name, function in weighed.items()}
        self.tests |= {name: _comparing(cast(Any, self.tests[name])) for name in _COMPARING_TESTS.split()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metered().visit(super()._parse(source, name, filename))
        return tree

    def concat(self, parts: Iterable[str]) -> str:
        """Of a macro, a block, an assignment: what was written in it."""
        written = list(parts)
        current.get().make(sum(map(len, written)))
        return "".join(written)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        current.get().step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, BuiltinMethodType) or isinstance(owner, str):
            _check_method(owner, __obj.__name__, args, kwargs)
        elif getattr(__obj, "__name__", "") == "changed":  # loop.changed compares
            current.get().weigh(args)
        return budget.make(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox puts something of its own in the place of ``str.format``."""
        wrapped = super().wrap_str_format(value)
        return wrapped and functools.partial(_checked_format, wrapped, value.__self__)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current.get().step()
        budget.check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    # ---- what compiled templates call

    def tick(self) -> None:
        """At every turn of a loop."""
        current.get().step()

    def concat_texts(self, *parts: Any) -> str:
        """``a ~ b``."""
        current.get().step()
        texts = list(map(budget.text, parts))
        current.get().make(sum(map(len, texts)))
        return "".join(texts)

    def made(self, value: Any) -> Any:
        """A slice, a list, a mapping."""
        return budget.make(value)

    def weighed(self, value: Any) -> Any:
        """What is compared or hashed: Python does that in one go, however deep it is."""
        if isinstance(value, list | tuple | dict):
            current.get().weigh(value)
        return value


def render(
    template: jinja2.Template, values: dict[str, Any], limits: Limits, clock: Callable[[], float] = time.thread_time
) -> str:
    """The text of a template. Raises TemplateError for whatever goes wrong in it."""
    spent = Budget(limits, clock)
    token = current.set(spent)
    try:
        return "".join(_bounded(template.generate(values), spent))
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateError("the chat template recurses without end") from None
    except Exception as error:  # whatever a template can do wrong, and they do
        raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
    finally:
        current.reset(token)


def _bounded(pieces: Iterator[str], spent: Budget) -> Iterator[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        spent.step()
        spent.size(total)
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

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _hook("made", [node], node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _hook("made", [node], node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _hook("made", [node], node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """A tuple may become a key."""
        self.generic_visit(node)
        return _hook("weighed", [node], node.lineno) if node.ctx == "load" else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _hook("weighed", [node.expr], node.lineno)
        for operand in node.ops:
            if operand.op not in ("in", "notin") or not isinstance(operand.expr, nodes.Name):
                operand.expr = _hook("weighed", [operand.expr], node.lineno)
        return node


class _Generator(CodeGenerator):
    """Calls the hooks as they are: they need no sandbox, and there are many."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for arg in node.args:
            self.visit(arg, frame)
            self.write(", ")
        self.write(")")


def _hook(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


ChatEnvironment.code_generator_class = _Generator


@pass_eval_context  # so that nothing is written at compile time
def _written(_: EvalContext, value: Any) -> Any:
    return value if isinstance(value, str | jinja2.Undefined) else budget.text(value)


# ---- filters, tests, methods


def _filter(function: Callable[..., Any], *, weighs: bool = False) -> Callable[..., Any]:
    """``weighs``: it writes its arguments out, or compares them."""

    @functools.wraps(function)  # it also says whether the context is wanted
    def metered(*args: Any, **kwargs: Any) -> Any:
        current.get().step()
        if weighs:
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            current.get().weigh((args, kwargs))
        return budget.make(function(*args, **kwargs))

    return metered


def _comparing(function: Callable[..., Any]) -> Callable[..., Any]:
    def test(*args: Any) -> Any:
        if any(isinstance(arg, list | tuple | dict) for arg in args):
            current.get().weigh(args)
        return function(*args)

    return test


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TemplateError for methods that prompts do not need, and where much would be made out of little."""
    if not any(name in names for kind, names in _ALLOWED.items() if isinstance(owner, kind)):
        raise TemplateError(f"the chat template calls {type(owner).__name__}.{name}, which chat templates may not")
    if isinstance(owner, str):
        _check_text_method(owner, name, args, kwargs)
    elif name in ("index", "count", "remove", "sort"):
        current.get().weigh((owner, args))
    elif name in ("extend", "update") and args and isinstance(args[0], list | tuple | dict):
        budget.make(list(args[0]))


def _checked_format(function: Callable[..., str], pattern: str, *args: Any, **kwargs: Any) -> str:
    budget.check_format(pattern, (*args, kwargs), "{")
    return function(*args, **kwargs)


def _check_text_method(text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    spent = current.get()
    match name, args:
        case "replace", (str(old), str(new), *_):
            spent.size(len(text) + text.count(old) * len(new))
        case (("ljust" | "rjust" | "zfill"), (int(width), *_)):
            spent.size(width)
        case "join", (list() | tuple() as parts, *_):
            spent.size(len(text) * len(parts) + spent.weigh(parts))
        case "join", _:
            raise TemplateError("the chat template joins something that is not a list")
        case "split" | "rsplit", _:
            separator = args[0] if args else kwargs.get("sep")
            spent.make(_PART * (text.count(separator) if separator else len(text) // 2))
        case "splitlines", _:
            spent.make(_PART * text.count("\n"))
        case "replace", _:
            raise TypeError("replace wants two texts")


_PART = 8  # at least so many characters does a part of a text cost


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent and _margin(indent),
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )
    return encoder.encode(value) if indent is None else "".join(_bounded(encoder.iterencode(value), current.get()))


def _margin(indent: int | str) -> int | str:
    if (indent if isinstance(indent, int) else len(indent)) > MAX_INDENT:
        raise TemplateError("the chat template indents without reason")
    return indent


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
    budget.check_format(str(pattern), (kwargs or args,), "%")
    return str(pattern) % (kwargs or args)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = _margin(width)
    current.get().size(MAX_INDENT * text.count("\n"))
    return str(do_indent(text, margin, first, blank))


def _join(eval_ctx: EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    parts = list(value)
    current.get().size(len(str(d)) * len(parts) + current.get().weigh(parts))
    return str(jinja2.filters.sync_do_join(eval_ctx, parts, str(d), attribute))


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = str(value)
    current.get().size(len(text) + text.count(str(old)) * len(str(new)))
    return text.replace(str(old), str(new), count)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MAX_PRECISION:
        raise TemplateError("the chat template rounds to an unreasonable precision")
    return do_round(value, precision, method)


def _sum(environment: jinja2.Environment, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise TemplateError("the chat template adds up things that are not numbers")
    return sync_do_sum(environment, iterable, attribute, start)


_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": to_json,
    "from_json": json.loads,
    "fromjson": json.loads,
    "safe": str,
    "escape": _escape,
    "e": _escape,
    "forceescape": _escape,
    "format": _format,
    "indent": _indent,
    "join": pass_eval_context(_join),
    "replace": _replace,
    "round": _round,
    "sum": pass_environment(_sum),
}


def _date_pattern(pattern: str) -> str:
    if len(pattern) > MAX_DATE_CHARS:
        raise TemplateError("the chat template writes an unreasonable date")
    return pattern


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message))
