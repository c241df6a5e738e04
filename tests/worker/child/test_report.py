"""Counters for the runtime: after news, and whatever a pass of collecting them did."""

from __future__ import annotations

import logging
import queue

import pytest

from barrel_inference.types import ModelInfo
from barrel_inference.worker.child.report import Reporter
from barrel_inference.worker.messages import Counters, Msg

FACTS = Counters({"steps": 1.0}, ModelInfo(id="m", phase="ready", backend="stub"))


def test_a_report_that_fails_is_told_once_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    sent: queue.SimpleQueue[list[Msg]] = queue.SimpleQueue()
    reporter = Reporter(sent.put)
    failures = iter([ProcessLookupError("gone"), ProcessLookupError("gone")])

    def collect() -> Counters:
        if (error := next(failures, None)) is not None:
            reporter.news()
            raise error
        return FACTS

    with caplog.at_level(logging.WARNING):
        reporter.start(collect)
        reporter.news()
        assert sent.get(timeout=20) == [FACTS]
    assert [record.getMessage() for record in caplog.records] == [
        "the worker's state cannot be told: ProcessLookupError('gone')"
    ]
