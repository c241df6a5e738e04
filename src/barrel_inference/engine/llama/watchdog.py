"""Ends a decode that takes too long, through llama.cpp's abort callback.

The callback is asked once per graph node, some thousand times a step: a Python function there costs several percent.
So it is libc's ``strlen`` on a two-byte flag: 0 (go on) until the watching thread writes a character into it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

from barrel_inference.engine.llama.binding import lib


class Watchdog:
    """``arm`` and ``disarm`` belong to the engine thread; the watching thread sleeps unless a decode runs.

    ``callback`` and ``flag`` are what llama.cpp gets.
    """

    def __init__(self) -> None:
        libc = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
        self.flag = ctypes.create_string_buffer(2)
        self.callback = lib.ggml_abort_callback(ctypes.cast(libc.strlen, ctypes.c_void_p).value)
        self._lock = threading.RLock()  # taken twice a step: by itself it costs a third of the condition's own methods
        self._changed = threading.Condition(self._lock)
        self._deadline: float | None = None
        self._poll_s = 1.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def attach(self, context: Any) -> None:
        lib.llama_set_abort_callback(context, self.callback, ctypes.cast(self.flag, ctypes.c_void_p))

    def arm(self, budget_s: float | None) -> None:
        """None: no limit."""
        with self._lock:
            self.flag[0] = b"\0"
            if budget_s is None:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="decode watchdog", daemon=True)
                self._thread.start()
            if self._deadline is None:
                self._changed.notify()
            self._poll_s = min(1.0, budget_s / 4)
            self._deadline = time.monotonic() + budget_s

    def disarm(self) -> None:
        """Under the lock: a deadline that passes in this very moment must not end the next decode."""
        with self._lock:
            # Not None: the thread would have to be woken for each step; with a far deadline it just polls.
            if self._deadline is not None:
                self._deadline = float("inf")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left = self._remaining()
                if left is not None and left <= 0:
                    self.flag[0] = b"!"
                    self.disarm()
                else:
                    self._changed.wait(left)

    def _remaining(self) -> float | None:
        """How long to sleep; None = until the first decode."""
        deadline = self._deadline
        if deadline is None:
            return None
        return min(deadline - time.monotonic(), self._poll_s)
