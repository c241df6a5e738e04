"""Progress of pulls and creates on standard error: bars with rate and time left on a terminal, plain lines elsewhere.

Owns the bars while ``follow`` runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TextIO

from barrel_inference.cli.report import human_bytes

Event = dict[str, Any]
LINE_S = 5.0  # without a terminal: at most one line of the same transfer in so many seconds


class Display(Protocol):
    """Told of every event in order."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A line for each new status, and one now and then while it goes on."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._status = ""
        self._told = 0.0

    def show(self, event: Event) -> None:
        now = self._clock()
        if event["status"] == self._status and now - self._told < LINE_S:
            return
        self._status, self._told = event["status"], now
        self._out.write(f"{short(event)}\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing is open."""


class Bars:
    """One bar for each transfer, one line for every other status."""

    def __init__(self) -> None:
        from rich.console import Console  # a third of the time to import this package
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, Any] = {}
        self._progress.start()

    def show(self, event: Event) -> None:
        status = event["status"]
        if status not in self._tasks and "completed" not in event:
            self._progress.console.print(status, highlight=False)
            self._tasks[status] = None
        elif self._tasks.get(status) is None and "completed" in event:
            self._tasks[status] = self._progress.add_task(status[:40], total=event.get("total"))
        if self._tasks.get(status) is not None:
            self._progress.update(self._tasks[status], completed=event["completed"], total=event.get("total"))

    def close(self) -> None:
        self._progress.stop()


def short(event: Event) -> str:
    """``pulling sha256:…  12.0 MiB of 93.8 MiB``"""
    if not event.get("completed"):
        return str(event["status"])
    done = human_bytes(event["completed"])
    return f"{event['status']}  {done}" + (f" of {human_bytes(event['total'])}" if event.get("total") else "")


def display() -> Display:
    """What suits standard error."""
    return Bars() if sys.stderr.isatty() else Lines(sys.stderr)


async def follow(events: AsyncIterator[Event], shown: Display | None = None) -> None:
    """Show all of them; raises what the job raised."""
    shown = shown or display()
    try:
        async for event in events:
            shown.show(event)
    finally:
        shown.close()
