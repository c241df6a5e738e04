"""Progress without a terminal."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barrel_inference.cli.progress import LINE_S, Bars, Event, Lines, brief, follow, short
from barrel_inference.cli.report import printable

MIB = 1 << 20


def _pulling(done: int) -> Event:
    return {"status": "pulling sha256:ab", "completed": done * MIB, "total": 10 * MIB}


def test_a_transfer_says_how_far_it_is() -> None:
    assert short(_pulling(5)) == "pulling sha256:ab  5.0 of 10.0 MiB"
    assert short({"status": "success"}) == "success"
    assert short({"status": "pulling x", "completed": 0}) == "pulling x"
    assert short({"status": "pulling x", "completed": MIB}) == "pulling x  1.0 MiB"


def test_a_transfer_is_told_now_and_then_and_every_new_status_at_once() -> None:
    out, times = io.StringIO(), iter([0.0, 1.0, LINE_S + 1, LINE_S + 1.1])
    lines = Lines(out, clock=lambda: next(times))
    for event in (_pulling(1), _pulling(2), _pulling(3), {"status": "success"}):
        lines.show(event)
    assert out.getvalue().splitlines() == [short(_pulling(1)), short(_pulling(3)), "success"]


def test_a_short_transfer_is_not_left_at_its_beginning() -> None:
    out = io.StringIO()
    lines = Lines(out, clock=lambda: 0.0)
    for event in (_pulling(1), _pulling(2), _pulling(10), _pulling(10), {"status": "success"}):
        lines.show(event)
    assert out.getvalue().splitlines() == [short(_pulling(1)), short(_pulling(10)), "success"]


def test_bars_fit_on_eighty_columns() -> None:
    out = io.StringIO()
    bars = Bars(out, width=80)
    status = f"pulling sha256:{'ab' * 32}"
    for event in ({"status": "pulling manifest"}, *({"status": status, "completed": n, "total": 10} for n in (5, 10))):
        bars.show(event)
    bars.close()
    last = out.getvalue().splitlines()[-1]
    assert "pulling manifest\n" in out.getvalue()
    assert "pulling sha256:abababababab" in last and "10 of 10 B" in last and len(last) <= 80


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (f"pulling sha256:{'ab' * 32}", "pulling sha256:abababababab"),
        ("pulling a-file-with-a-long-name-Q4_K_M.gguf", "pulling a-file-with-…Q4_K_M.gguf"),
    ],
)
def test_a_long_status_is_cut_where_it_matters_least(status: str, text: str) -> None:
    assert brief(status) == text


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


@pytest.mark.parametrize("name", ["a[/b].gguf", "[bold]x", "x\x1b[31m\x07.gguf", "\udcff"])
def test_names_by_strangers_are_only_text(name: str) -> None:
    status, shown = f"hashing {name}", f"hashing {printable(name)}"
    out, lines = io.StringIO(), io.StringIO()
    bars, plain = Bars(out, width=80), Lines(lines)
    for event in ({"status": status}, {"status": f"{status}!", "completed": 1, "total": 2}):
        bars.show(event)
        plain.show(event)
    bars.close()
    assert shown in out.getvalue() and shown in lines.getvalue()
    assert "\x1b" not in lines.getvalue() and "\x1b[31m" not in out.getvalue()
