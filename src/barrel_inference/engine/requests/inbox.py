"""How other threads reach the engine: functions posted here run on the engine thread between two steps, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Inbox:
    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()

    def post(self, action: Callable[[], None]) -> None:
        self._posted.append(action)
        self._wake.set()

    def call(self, fn: Callable[[], T]) -> Future[T]:
        """Run ``fn`` on the engine thread; the future takes its result or its exception."""
        future: Future[T] = Future()

        def action() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn())
            except Exception as error:
                future.set_exception(error)

        self.post(action)
        return future

    def run_posted(self) -> None:
        self._wake.clear()
        while self._posted:
            self._posted.popleft()()

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something is posted; returns at once if something was since ``run_posted``."""
        self._wake.wait(timeout_s)
