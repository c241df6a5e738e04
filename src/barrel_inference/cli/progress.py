"""Progress of pulls and creates on standard error: bars with rate and time left on a terminal, plain lines elsewhere.

Owns the bars while ``follow`` runs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TextIO

from barrel_inference.cli.report import human_bytes, printable

Event = dict[str, Any]
LINE_S = 5.0  # without a terminal: at most one line of the same transfer in so many seconds
STATUS_WIDTH = 32


class Display(Protocol):
    """Told of every event in order."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A line for each new status, one now and then while it goes on, and one when a transfer is complete."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._status = self._line = ""
        self._told = 0.0

    def show(self, event: Event) -> None:
        now, line = self._clock(), short(event)
        is_complete = bool(event.get("total")) and event.get("completed") == event["total"]
        is_due = event["status"] != self._status or now - self._told >= LINE_S or is_complete
        if not is_due or line == self._line:
            return
        self._status, self._line, self._told = event["status"], line, now
        self._out.write(f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing is open."""


class Bars:
    """One bar for each transfer, one line for every other status."""

    def __init__(self, out: TextIO, width: int | None = None) -> None:
        from rich.console import Console  # a third of the time to import this package
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(file=out, width=width))
        self._tasks: dict[str, Any] = {}
        self._progress.start()

    def show(self, event: Event) -> None:
        status = printable(event["status"])
        if status not in self._tasks and "completed" not in event:
            self._progress.console.print(status, highlight=False, markup=False)
            self._tasks[status] = None
        elif self._tasks.get(status) is None and "completed" in event:
            self._tasks[status] = self._progress.add_task(brief(status), total=event.get("total"), amount="")
        if (task := self._tasks.get(status)) is not None:
            self._progress.update(task, completed=event["completed"], total=event.get("total"))
            speed = self._progress.tasks[task].speed
            rate = f"  {human_bytes(speed)}/s" if speed else ""
            self._progress.update(task, amount=amount(event) + rate)

    def close(self) -> None:
        self._progress.stop()


def brief(status: str) -> str:
    """With the first twelve digits of a digest, as in ``list``; what is longer still loses its middle."""
    text = re.sub(r"(sha256:[0-9a-f]{12})[0-9a-f]+", r"\1", status)
    return text if len(text) <= STATUS_WIDTH else f"{text[:20]}…{text[21 - STATUS_WIDTH :]}"


def amount(event: Event) -> str:
    """``12.0 of 93.8 MiB``"""
    done = human_bytes(event["completed"])
    if not event.get("total"):
        return done
    total = human_bytes(event["total"])
    return f"{done.removesuffix(' ' + total.split()[1])} of {total}"


def short(event: Event) -> str:
    """``pulling sha256:…  12.0 MiB of 93.8 MiB``"""
    if not event.get("completed"):
        return printable(event["status"])
    return f"{printable(event['status'])}  {amount(event)}"


def display() -> Display:
    """What suits standard error."""
    return Bars(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


async def follow(events: AsyncIterator[Event], shown: Display | None = None) -> None:
    """Show all of them; raises what the job raised."""
    shown = shown or display()
    try:
        async for event in events:
            shown.show(event)
    finally:
        shown.close()
