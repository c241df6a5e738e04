"""The pieces of an answer, without a server."""

from __future__ import annotations

from datetime import UTC, datetime

from barrel_inference.server.ollama import wire
from barrel_inference.server.ollama.pieces import Writer
from barrel_inference.types import CacheReport, Completion, Usage

DATES = [datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]  # the clock of the machine is set back
DONE = Completion(
    text="hi",
    tokens=(1,),
    prompt_tokens=(2, 3),
    finish_reason="stop",
    usage=Usage(prompt_tokens=2, completion_tokens=1, cached_tokens=0),
    cache=CacheReport(kind="cold"),
)


def test_durations_do_not_come_from_dates() -> None:
    times = iter([5.0, 7.5])
    dates = iter(DATES)
    writer = Writer("m", now=lambda: next(dates), clock=lambda: next(times))
    assert isinstance(first := writer.text("hi"), wire.Answered)
    final = writer.final(DONE, load_s=0.5)
    assert (first.created_at[:10], final.created_at[:10]) == ("2026-01-02", "2026-01-01")
    assert (final.total_duration, final.load_duration) == (2_500_000_000, 500_000_000)
