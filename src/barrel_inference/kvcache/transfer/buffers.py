"""Reused memory for what is read and written: fresh memory is filled at a tenth of the speed."""

from __future__ import annotations

import mmap
import sys
import threading

MAX_IDLE_BYTES = 512 << 20  # kept for reuse


class Memory:
    """Reused buffers. ``take`` gives None when more than ``limit_bytes`` would be out, or the system has no more. Any
    thread."""

    def __init__(self, limit_bytes: int = sys.maxsize) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._idle: list[memoryview] = []
        self._out = 0

    def take(self, n_bytes: int) -> memoryview | None:
        """A buffer of at least ``n_bytes``."""
        with self._lock:
            if self._out + n_bytes > self._limit:
                return None
            fitting = [buffer for buffer in self._idle if len(buffer) >= n_bytes]
            try:
                buffer = min(fitting, key=len) if fitting else allocate(n_bytes)
            except (OSError, MemoryError, OverflowError):  # mmap says it with an OSError
                return None
            if fitting:
                self._idle = [idle for idle in self._idle if idle is not buffer]
            self._out += len(buffer)
            return buffer

    def give(self, buffer: memoryview) -> None:
        with self._lock:
            self._out -= len(buffer)
            self._idle.append(buffer)
            self._idle.sort(key=len)
            while sum(map(len, self._idle)) > MAX_IDLE_BYTES:
                self._idle.pop(0)


def allocate(n_bytes: int) -> memoryview:
    """Of at least ``n_bytes``, page-aligned. OSError, MemoryError or OverflowError when there is none."""
    size = 1 << max(16, (n_bytes - 1).bit_length())
    if size - n_bytes > 64 << 20:  # powers of two waste too much of large blobs
        size = -(-n_bytes // (64 << 20)) * (64 << 20)
    return memoryview(mmap.mmap(-1, size))  # numpy would ask for huge pages: up to 5 ms for the first byte of each
