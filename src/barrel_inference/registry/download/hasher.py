"""SHA-256 that follows a download: a thread reads the finished front of the file and hashes it while the rest arrives.
Owns its thread's progress; the downloader only moves the mark."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from barrel_inference.registry.files import writing

READ_BYTES = 1 << 20


class Hasher:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = 0
        self._ended = False
        self._changed = threading.Condition()

    def advance(self, mark: int) -> None:
        """All bytes below ``mark`` are final."""
        with self._changed:
            if mark - self._mark >= READ_BYTES:
                self._mark = mark
                self._changed.notify()

    def end(self, mark: int) -> None:
        """``mark`` is the file's end; with -1 the work is abandoned."""
        with self._changed:
            self._mark, self._ended = mark, True
            self._changed.notify()

    def run(self) -> str:
        """Blocks until ``end``; returns ``sha256:<hex>``, or nothing useful when abandoned."""
        digest, position = hashlib.sha256(), 0
        with writing(self._path), self._path.open("rb", buffering=0) as file:
            while True:
                mark, ended = self._wait_beyond(position)
                while position < mark:
                    block = file.read(min(READ_BYTES, mark - position))
                    if not block:
                        return ""
                    digest.update(block)
                    position += len(block)
                if ended and position >= mark:
                    return f"sha256:{digest.hexdigest()}"

    def _wait_beyond(self, position: int) -> tuple[int, bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._mark > position)
            return self._mark, self._ended
