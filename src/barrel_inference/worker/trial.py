"""Who is to blame when the worker dies again, and so what the next one may be given. Pure; owned by the supervisor.

A first death is nobody's fault: everything goes to the next worker together. What was there at two deaths is a suspect,
and each suspect has a worker to itself until it is past the place or has ended. Whoever kills it alone is guilty, which
acquits the others. What is suspected again is alone to its end, so that this comes to an end as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from barrel_inference.errors import WorkerDiedError
from barrel_inference.worker.client import Pending

MAX_DEATHS = 2


class Trial:
    def __init__(self) -> None:
        self._suspects: list[Pending] = []  # the first of them is on trial

    def after_death(self, pending: Sequence[Pending], epitaph: str) -> None:
        """The worker that had some of ``pending`` has died. Fails the guilty one, if that is known by now."""
        present = [each for each in reversed(pending) if each.sent]
        present.sort(key=lambda each: not each.is_running)  # first what came last, and at the end what only waited
        for each in present:
            each.bereave()
        present = [each for each in present if not each.done]
        if not self._suspects:
            self._suspects = [each for each in present if each.deaths >= MAX_DEATHS]
            for each in self._suspects:
                each.is_acquitted = False
        if len(present) == 1 and present == self._suspects[:1]:
            self._convict(present[0], epitaph)
            for each in pending:
                each.deaths = 0

    def _convict(self, guilty: Pending, epitaph: str) -> None:
        guilty.fail(WorkerDiedError(f"the worker died {guilty.deaths} times during {guilty.name} ({epitaph})"))
        self._suspects = []

    def due(self, pending: Sequence[Pending]) -> list[Pending]:
        """What the living worker should have and does not have yet."""
        self._suspects = [each for each in self._suspects if not (each.done or each.is_acquitted)]
        allowed = self._suspects[:1] or pending
        return [each for each in allowed if not (each.sent or each.done)]

    def is_on(self, pending: Pending) -> bool:
        """Whether this one has the worker to itself."""
        return pending in self._suspects[:1]
