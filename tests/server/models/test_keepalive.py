"""Ollama's keep_alive: how it is written, and when it runs out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.models.keepalive import FOREVER, KeepAlive, go_duration, parse, parse_environment
from tests.server.fakes import FakeTimers


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (0.0, 0.0),
        (5, 5.0),
        (2.5, 2.5),
        (-1, FOREVER),
        (-0.5, FOREVER),
        ("0", 0.0),
        ("0s", 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h", 3600.0),
        ("90s", 90.0),
        ("1.5h", 5400.0),
        (".5m", 30.0),
        ("500ms", 0.5),
        ("1m0.5s", 60.5),
        ("100us", 0.0001),
        ("100µs", 0.0001),
        ("-1m", FOREVER),
        ("-1s", FOREVER),
        ("+2s", 2.0),
        (1e300, FOREVER),
        (10**400, FOREVER),
        (-(10**400), FOREVER),
        ("999999999h", FOREVER),
    ],
)
def test_parse(value: Any, seconds: float | None) -> None:
    assert parse(value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("300", 'time: missing unit in duration "300"'),
        ("-1", 'time: missing unit in duration "-1"'),
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("5 m", 'time: invalid duration "5 m"'),
        ("5d", 'time: invalid duration "5d"'),
        ("5m3", 'time: invalid duration "5m3"'),
        ("٥m", 'time: invalid duration "٥m"'),
        ("1" * 1_000_000, 'time: missing unit in duration "111'),
        ("1" * 1_000_000 + "x", 'time: invalid duration "111'),
        (True, "Unsupported type: 'bool'"),
        ([], "Unsupported type: 'list'"),
        ({}, "Unsupported type: 'dict'"),
        (math.nan, "not a number"),
    ],
)
def test_what_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(value)
    assert words in caught.value.message


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False).map(lambda value: round(value, 3)))
def test_numbers_and_their_durations_mean_the_same(seconds: float) -> None:
    assert go_duration(f"{seconds:.3f}s") == pytest.approx(parse(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300.0), ("-1", FOREVER), ("10m", 600.0), ("-5s", FOREVER), ("rubbish", 42.0)]
)
def test_environment(text: str, seconds: float) -> None:
    assert parse_environment(text, 42.0) == seconds


class Clocked:
    def __init__(self, default_s: float = 300.0) -> None:
        self.timers = FakeTimers()
        self.expired = 0
        self.keep = KeepAlive(self.timers, default_s, self._expire)

    def _expire(self) -> None:
        self.expired += 1


def test_the_timer_runs_from_the_end_of_the_last_request() -> None:
    clocked = Clocked()
    clocked.keep.enter(None)
    clocked.keep.enter(None)
    clocked.timers.advance(1000)
    clocked.keep.leave()
    clocked.timers.advance(1000)
    assert clocked.expired == 0, "one is still running"
    clocked.keep.leave()
    clocked.timers.advance(299)
    assert clocked.expired == 0
    clocked.timers.advance(1)
    assert clocked.expired == 1


def test_a_new_request_stops_the_timer() -> None:
    clocked = Clocked()
    clocked.keep.enter(None)
    clocked.keep.leave()
    clocked.timers.advance(299)
    clocked.keep.enter(None)
    clocked.timers.advance(1000)
    assert clocked.expired == 0
    clocked.keep.leave()
    clocked.timers.advance(300)
    assert clocked.expired == 1


def test_what_a_request_wanted_stays_for_the_next_ones() -> None:
    clocked = Clocked()
    clocked.keep.enter(10.0)
    clocked.keep.leave()
    clocked.keep.enter(None)
    clocked.keep.leave()
    clocked.timers.advance(10)
    assert clocked.expired == 1


def test_zero_expires_at_the_end_of_the_last_request() -> None:
    clocked = Clocked()
    clocked.keep.enter(None)
    clocked.keep.enter(0.0)
    clocked.keep.leave()
    assert clocked.expired == 0
    clocked.keep.leave()
    assert clocked.expired == 1


def test_forever_never_expires() -> None:
    clocked = Clocked()
    clocked.keep.enter(FOREVER)
    clocked.keep.leave()
    clocked.timers.advance(10**9)
    assert clocked.expired == 0
    assert clocked.keep.left_s() == FOREVER


def test_set_without_a_request() -> None:
    clocked = Clocked()
    clocked.keep.enter(None)
    clocked.keep.leave()
    clocked.keep.set(5.0)
    assert clocked.keep.left_s() == 5.0
    clocked.keep.set(0.0)
    assert clocked.expired == 1


def test_left_while_a_request_runs_is_forever() -> None:
    clocked = Clocked()
    clocked.keep.enter(5.0)
    assert clocked.keep.left_s() == FOREVER
    clocked.keep.leave()
    clocked.timers.advance(2)
    assert clocked.keep.left_s() == 3.0
