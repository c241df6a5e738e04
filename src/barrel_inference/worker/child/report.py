"""Counters and the changing facts of ``info()`` for the runtime, at most four times a second and only after news.
Owns its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from barrel_inference.worker.messages import Counters, Msg

INTERVAL_S = 0.25


class Reporter:
    def __init__(self, send: Callable[[list[Msg]], None]) -> None:
        self._send = send
        self._news = threading.Event()

    def start(self, collect: Callable[[], Counters]) -> None:
        self._collect = collect
        threading.Thread(target=self._run, name="report", daemon=True).start()

    def news(self) -> None:
        """Something changed. Any thread; cheap."""
        self._news.set()

    def report(self) -> None:
        """Now."""
        self._send([self._collect()])

    def _run(self) -> None:
        while self._news.wait():
            self._news.clear()
            self.report()
            time.sleep(INTERVAL_S)
