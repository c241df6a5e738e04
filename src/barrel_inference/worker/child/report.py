"""Counters and the changing facts of ``info()`` for the runtime, at most four times a second and only after news.
Owns its thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from barrel_inference.trouble import Trouble
from barrel_inference.worker.messages import Counters, Msg

INTERVAL_S = 0.25

log = logging.getLogger(__name__)


class Reporter:
    def __init__(self, send: Callable[[list[Msg]], None]) -> None:
        self._send = send
        self._news = threading.Event()
        self._trouble = Trouble(log)

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
            try:
                self.report()
            except Exception as error:  # only facts for people: no reason to end the worker
                self._trouble.tell("the worker's state cannot be told: %r", error)
            else:
                self._trouble.is_over()
            time.sleep(INTERVAL_S)
