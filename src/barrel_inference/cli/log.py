"""The server's log on standard error: one line for each record, written by a thread of its own, so that a reader who
does not read (a full pipe, a terminal that is held) stops no request.

The handler owns the waiting lines, the thread and their end.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from contextlib import suppress
from typing import ClassVar

STDERR = 2
MAX_LINES = 4096  # that wait; later ones are lost, and counted
FLUSH_S = 2.0  # for a reader at the end
POLL_S = 0.005


class OneLine(logging.Formatter):
    """What others wrote (a model file's metadata, a registry's answer) can neither begin a line of the log nor steer
    the terminal that shows it. Tracebacks come after it as they are."""

    _ESCAPED: ClassVar = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return super().formatMessage(record).translate(self._ESCAPED)


class Patient(logging.Handler):
    """Writes to ``fd`` in order. What finds ``max_lines`` waiting is dropped; how many is said in their place."""

    def __init__(self, fd: int, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._fd = fd
        self._lines: queue.Queue[str] = queue.Queue(max_lines)
        self._lost = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Under the handler's lock."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        self._lost += not (self._tell_lost() and self._put(line))

    def _tell_lost(self) -> bool:
        """Whether there is nothing to be told any more."""
        if self._lost and self._put(f"lines of the log that nobody read are lost: {self._lost}"):
            self._lost = 0
        return not self._lost

    def _put(self, line: str) -> bool:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return False
        return True

    def flush(self) -> None:
        """Wait until all is written, but not for a reader who does not read. The interpreter calls it at its end."""
        deadline = time.monotonic() + FLUSH_S
        self.acquire()
        try:
            while (not self._tell_lost() or self._lines.unfinished_tasks) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            self.release()

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            with suppress(OSError):  # nobody can read it any more, and nobody can be told
                self._write(f"{line}\n".encode(errors="backslashreplace"))
            self._lines.task_done()

    def _write(self, data: bytes) -> None:
        """Not through sys.stderr: the interpreter's end would wait for a lock that a blocked write holds."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another program has made the pipe or terminal we share so
                time.sleep(POLL_S)
