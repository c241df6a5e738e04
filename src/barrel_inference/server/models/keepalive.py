"""How long a model stays loaded when nobody uses it: Ollama's parse rules (pure), and the timer of one model.

A timer belongs to the event loop; time comes from ``Timers`` (an asyncio loop, or a test's clock).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Protocol

from barrel_inference.errors import InvalidRequestError

FOREVER = math.inf

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+")
_UNITLESS = re.compile(rf"[+-]?{_NUMBER}")
_MAX_INT = 2**63
_MAX_S = _MAX_INT / 1e9  # Go counts nanoseconds in 64 bits; more is forever


def parse(value: Any) -> float | None:
    """Seconds, FOREVER, or None for not given. Numbers are seconds, text is a Go duration, negative is forever.

    Raises InvalidRequestError; a number in quotes is one of the errors, as in Ollama.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidRequestError(f"keep_alive: Unsupported type: '{type(value).__name__}'", option="keep_alive")
    seconds = go_duration(value) if isinstance(value, str) else float(max(min(value, _MAX_INT), -_MAX_INT))
    if math.isnan(seconds):
        raise InvalidRequestError("keep_alive: not a number", option="keep_alive")
    return FOREVER if seconds < 0 or seconds > _MAX_S else seconds


def go_duration(text: str) -> float:
    """Seconds of Go's time.ParseDuration: 5m, 1h30m, 1.5h, -1s, 0. Raises InvalidRequestError."""
    if text in ("0", "+0", "-0"):
        return 0.0
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        return -seconds if text.startswith("-") else seconds
    problem = "missing unit in" if _UNITLESS.fullmatch(text) else "invalid"
    raise InvalidRequestError(f'time: {problem} duration "{text[:80]}"', option="keep_alive")


def parse_environment(text: str, default: float) -> float:
    """OLLAMA_KEEP_ALIVE: a duration or whole seconds, negative is forever, anything else is the default."""
    try:
        seconds = float(text) if re.fullmatch(r"[+-]?[0-9]+", text) else go_duration(text)
    except InvalidRequestError:
        return default
    return FOREVER if seconds < 0 else seconds


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What asyncio's loop offers."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Timer: ...


class KeepAlive:
    """Counts the requests of one model; ``expired`` is called when none has come for the time that the last one
    wanted, never while one runs."""

    def __init__(self, timers: Timers, default_s: float, expired: Callable[[], None]) -> None:
        self.active = 0
        self.keep_s = self._default_s = default_s
        self.last_used = timers.time()
        self._timers = timers
        self._expired = expired
        self._timer: Timer | None = None
        self._deadline: float | None = None

    def enter(self, keep_s: float | None) -> None:
        """A request begins. None keeps what an earlier one wanted."""
        self.active += 1
        self._set(keep_s)
        self._disarm()

    def leave(self) -> None:
        self.active -= 1
        self.last_used = self._timers.time()
        if not self.active:
            self._arm()

    def set(self, keep_s: float | None) -> None:
        """Change the time without a request; 0 of an idle model expires it now."""
        self._set(keep_s)
        if not self.active:
            self._arm()

    def forget(self) -> None:
        """The model goes: the next load begins with the default."""
        self._disarm()
        self.keep_s = self._default_s

    def left_s(self) -> float:
        """Until it is unloaded: FOREVER while a request runs or when it is held."""
        return FOREVER if self._deadline is None else max(0.0, self._deadline - self._timers.time())

    def _set(self, keep_s: float | None) -> None:
        if keep_s is not None:
            self.keep_s = keep_s

    def _arm(self) -> None:
        self._disarm()
        if self.keep_s <= 0:
            self._expired()
        elif self.keep_s < FOREVER:
            self._deadline = self._timers.time() + self.keep_s
            self._timer = self._timers.call_later(self.keep_s, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._deadline = None
