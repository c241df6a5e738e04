"""Waiting for what another thread or process brings about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def eventually(check: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until ``check`` is true; fail when it does not become so."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def until(check: Callable[[], object], timeout_s: float = 60.0) -> None:
    """The same, blocking."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def step_until(check: Callable[[], object], step: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """The same for what ``step`` brings about; while that finds nothing to do, other threads may."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        if not step():
            time.sleep(0.001)
