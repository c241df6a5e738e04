"""Progress without a terminal."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barrel_inference.cli.progress import LINE_S, Event, Lines, follow, short

MIB = 1 << 20


def _pulling(done: int) -> Event:
    return {"status": "pulling sha256:ab", "completed": done * MIB, "total": 10 * MIB}


def test_a_transfer_says_how_far_it_is() -> None:
    assert short(_pulling(5)) == "pulling sha256:ab  5.0 MiB of 10.0 MiB"
    assert short({"status": "success"}) == "success"
    assert short({"status": "pulling x", "completed": 0}) == "pulling x"
    assert short({"status": "pulling x", "completed": MIB}) == "pulling x  1.0 MiB"


def test_a_transfer_is_told_now_and_then_and_every_new_status_at_once() -> None:
    out, times = io.StringIO(), iter([0.0, 1.0, LINE_S + 1, LINE_S + 1.1])
    lines = Lines(out, clock=lambda: next(times))
    for event in (_pulling(1), _pulling(2), _pulling(3), {"status": "success"}):
        lines.show(event)
    assert out.getvalue().splitlines() == [short(_pulling(1)), short(_pulling(3)), "success"]


class _Recorder:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def show(self, event: Event) -> None:
        self.seen.append(event["status"])

    def close(self) -> None:
        self.seen.append("closed")


async def test_the_display_is_closed_when_the_job_fails() -> None:
    async def events() -> AsyncIterator[Event]:
        yield {"status": "pulling manifest"}
        raise OSError("gone")

    display = _Recorder()
    with pytest.raises(OSError, match="gone"):
        await follow(events(), display)
    assert display.seen == ["pulling manifest", "closed"]
