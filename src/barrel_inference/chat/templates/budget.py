"""What one rendering of a chat template may cost: time, and the size of what it makes. Pure; the budget of the
rendering under way is held in a context variable.

A template is a program by a stranger that shares its process with every running stream, so that whatever Python does in
one go (joining, comparing, writing out) is bounded before it is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from jinja2.utils import Namespace

from barrel_inference.errors import TemplateError

MAX_BITS = 4096  # of a whole number that is computed with
MAX_DIGITS = 4  # of a width in a format
_DIGITS = re.compile(r"[0-9]+")
_VARIABLE_WIDTHS = {"%": re.compile(r"%[^%\w]*\*"), "{": re.compile(r"\{[^{}]*\{")}
_STEP = 64  # characters that a step counts as
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_MANY: tuple[type[Iterable[Any]], ...] = (
    list,
    tuple,
    set,
    frozenset,
    *_VIEWS,
)  # no abstract types: those are slow to ask for
_POINTER = 8  # characters that an item of a list counts as
_STEPS_BETWEEN_CLOCKS = 128  # reading the clock costs more than a step


class Limits(NamedTuple):
    """Of one rendering. ``chars`` holds for every text, and for every value as if it were written out; ``made_chars``
    for all that is made on the way, together; ``seconds`` are of the processor, so that a busy machine is no reason."""

    chars: int = 16 << 20
    made_chars: int = 256 << 20
    seconds: float = 10.0


DEFAULT_LIMITS = Limits()


class Budget:
    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._steps = 0
        self._made = 0

    def step(self) -> None:
        """One turn of a loop or one call: it may make something small."""
        self._add(_STEP)
        self._tick()

    def _tick(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_CLOCKS == 0 and self._clock() > self._deadline:
            raise TemplateError(f"the chat template ran longer than {self._limits.seconds:g} s", timeout=True)

    def _add(self, chars: int) -> None:
        self._made += chars
        if self._made > self._limits.made_chars:
            raise TemplateError(f"the chat template made more than {self._limits.made_chars} characters in all")

    def size(self, chars: int) -> None:
        """Of one text, or of a value written out."""
        if chars > self._limits.chars:
            raise TemplateError(f"the chat template made a text of more than {self._limits.chars} characters")

    def make(self, chars: int) -> None:
        """A text or list of that size."""
        self.size(chars)
        self._add(max(chars, 0))

    def weigh(self, value: Any) -> int:
        """Characters of a value written out, about; what is in it twice counts twice."""
        if isinstance(value, str):
            return len(value)
        total, left = 0, [value]
        while left:
            each = left.pop()
            if isinstance(each, str):
                total += len(each)
            elif (inner := _inside(each)) is not None:
                total += len(inner)
                left += inner
                self._tick()
            self.size(total)
        return total


def _inside(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, _MANY):
        return list(value)
    if isinstance(value, Namespace):
        return [value._Namespace__attrs]
    return None


current: ContextVar[Budget] = ContextVar("budget")


def make(value: Any) -> Any:
    """``value``, which has just been made."""
    if isinstance(value, str):
        current.get().make(len(value))
    elif isinstance(value, list | tuple | dict):
        current.get().make(_POINTER * len(value))
    elif isinstance(value, Iterator):
        return _metered(value)
    return value


def _metered(values: Iterator[Any]) -> Iterator[Any]:
    budget = current.get()
    for value in values:
        budget.step()
        yield value


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    current.get().weigh(value)
    return str(value)


# ---- what makes much out of little


def check_binop(operator: str, left: Any, right: Any) -> None:
    budget = current.get()
    if isinstance(left, int) and isinstance(right, int):
        _check_whole(operator, left, right)
    elif operator == "*":
        budget.make(_size(left) * right if isinstance(right, int) else _size(right) * left)
    elif operator == "%" and isinstance(left, str):
        check_format(left, (right,), "%")
    elif operator == "+":
        budget.make(_size(left) + _size(right))


def _check_whole(operator: str, left: int, right: int) -> None:
    bits = max(left.bit_length(), right.bit_length())
    if operator == "**":
        bits = left.bit_length() * abs(right)
    if bits > MAX_BITS:
        raise TemplateError("the chat template computes with unreasonable numbers")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return _POINTER * len(value) if isinstance(value, list | tuple) else 0


def check_format(pattern: str, args: tuple[Any, ...], mark: Literal["%", "{"]) -> None:
    """What is filled in counts as often as anything is, and every number as a width. ``mark`` begins a field."""
    widths = [int(digits) for digits in _DIGITS.findall(pattern) if len(digits) <= MAX_DIGITS]
    if len(widths) < len(_DIGITS.findall(pattern)) or _VARIABLE_WIDTHS[mark].search(pattern.replace("{{", "")):
        raise TemplateError("the chat template formats with an unreasonable width")
    budget = current.get()
    fields = pattern.count(mark)
    filled = fields * max((budget.weigh(value) for arg in args for value in _inside(arg) or [arg]), default=0)
    budget.make(len(pattern) + sum(widths) + filled)
