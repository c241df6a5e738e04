"""When a worker that owes answers counts as hung: it shows no sign of life, or is in the same step of its engine for
far longer than a decode may take. Pure; time comes in ticks.

A tick counts at most twice its length. So whoever was stopped together with the worker (a laptop that slept, a server
under SIGSTOP) or was held up itself does not blame the worker for it.
"""

from __future__ import annotations

TICK_S = 5.0
MAX_TICK = 2.0  # times its length


class Vigil:
    """``silence_s``: how long a worker may say nothing at all; its process answers pings whatever its engine does.
    ``step_s``: how long one step may take; None for any time, when nothing bounds its decode."""

    def __init__(self, silence_s: float, step_s: float | None) -> None:
        self._silence_s = silence_s
        self._step_s = step_s
        self.tick_s = min(TICK_S, silence_s / 4)
        self._silent_for = 0.0
        self._stuck_for = 0.0
        self._step = 0

    @classmethod
    def over(cls, silence_s: float, decode_budget_ms: int) -> Vigil:
        """With the bound of a step that this budget gives: as long again as a silence for all that is not its decode, a
        context made anew, states taken and given back. 0: none."""
        return cls(silence_s, decode_budget_ms / 1000 + silence_s if decode_budget_ms else None)

    def heard(self) -> None:
        """Anything of the worker."""
        self._silent_for = 0.0

    def pulse(self, step: int) -> None:
        """The number of the step that its engine is in; 0: none, or in something that may take any time."""
        if step != self._step or not step:
            self._stuck_for = 0.0
        self._step = step

    def tick(self, elapsed_s: float, *, owes: bool) -> str:
        """After ``elapsed_s``; what is wrong with the worker, or nothing. One that owes no answer is not asked for any
        sign."""
        if not owes:
            self._silent_for = self._stuck_for = 0.0
            self._step = 0
            return ""
        elapsed_s = min(elapsed_s, MAX_TICK * self.tick_s)
        self._silent_for += elapsed_s
        self._stuck_for += elapsed_s if self._step else 0.0
        if self._silent_for > self._silence_s:
            return f"gave no sign of life for {self._silent_for:.0f} s"
        if self._step_s is not None and self._stuck_for > self._step_s:
            return f"was in one step of its engine for {self._stuck_for:.0f} s"
        return ""
