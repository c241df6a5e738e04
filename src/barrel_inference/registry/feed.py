"""One running job that several callers watch: all see the same events, and the job stops when the last one leaves.
A Feed owns the job's task and the events so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

TICK_S = 0.1  # progress is shown at most this often …
BEAT_S = 0.25  # … and at least this often while something is being transferred

Event = dict[str, Any]


class Feed:
    def __init__(self, job: Callable[[Callable[[Event], None]], Awaitable[object]]) -> None:
        self._events: list[Event] = []
        self._watchers = 0
        self._task = asyncio.ensure_future(job(self._emit))

    @property
    def is_running(self) -> bool:
        return not self._task.done() and not self._task.cancelling()

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Every event from the start (progress only as it stands); raises what the job raised."""
        self._watchers += 1
        try:
            seen, shown, silent_s = 0, None, 0.0
            while True:
                ended = (await asyncio.wait({self._task}, timeout=TICK_S if seen else 0))[0]
                silent_s += TICK_S
                if seen and self._is_due(self._events[seen - 1], shown, silent_s):
                    seen -= 1  # progress of the last line
                for event in self._events[seen:]:
                    shown, silent_s = event, 0.0
                    yield event
                seen = len(self._events)
                if ended:
                    await self._task
                    return
        finally:
            self._watchers -= 1
            if not self._watchers:
                await self._stop()

    def _emit(self, event: Event) -> None:
        """Progress of one status replaces what stood there; it never goes backwards."""
        last = self._events[-1] if self._events else None
        if last is None or last["status"] != event["status"]:
            self._events.append(event)
        elif "completed" in event and event["completed"] >= last.get("completed", 0):
            self._events[-1] = event

    @staticmethod
    def _is_due(current: Event, shown: Event | None, silent_s: float) -> bool:
        return current is not shown or ("completed" in current and silent_s + TICK_S > BEAT_S)

    async def _stop(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # seen
