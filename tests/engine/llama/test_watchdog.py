"""The decode watchdog, asked as llama.cpp asks it: by calling the C function with its data."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from barrel_inference.engine.llama.watchdog import Watchdog
from tests.support.waiting import until

NAME = "decode watchdog"


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    one = Watchdog()
    yield one
    one.close()
    until(lambda: not any(thread.name == NAME for thread in threading.enumerate()))


def aborts(watchdog: Watchdog) -> bool:
    asked: Any = watchdog.callback
    return bool(asked(ctypes.cast(watchdog.flag, ctypes.c_void_p)))


def test_a_decode_within_its_budget_goes_on(watchdog: Watchdog) -> None:
    watchdog.arm(3600.0)
    assert not aborts(watchdog)
    watchdog.disarm()
    assert not aborts(watchdog)


def test_a_decode_that_exceeds_its_budget_is_aborted(watchdog: Watchdog) -> None:
    watchdog.arm(0.01)
    until(lambda: aborts(watchdog))


def test_a_budget_is_noticed_while_the_thread_sleeps_for_a_longer_one(watchdog: Watchdog) -> None:
    watchdog.arm(3600.0)
    watchdog.disarm()
    watchdog.arm(0.01)
    until(lambda: aborts(watchdog))


def test_an_abort_ends_with_the_next_arming(watchdog: Watchdog) -> None:
    for budget in (None, 3600.0):
        watchdog.arm(0.01)
        until(lambda: aborts(watchdog))
        watchdog.arm(budget)
        assert not aborts(watchdog)


def test_no_budget_starts_no_thread(watchdog: Watchdog) -> None:
    watchdog.arm(None)
    watchdog.disarm()
    assert not aborts(watchdog)
    assert not any(thread.name == NAME for thread in threading.enumerate())
