"""How many bytes a tier directory holds, kept right across processes by flock. Owns the files ``usage`` and ``lock``.

    usage   i64 bytes held | i64 removals so far: whoever remembers what is there looks again when this has changed

A writer reserves before it writes and holds ``lock`` shared until the object is published; a recount takes ``lock``
exclusively, so it never sees half an object. Bytes reserved by a process that died are found by the next recount.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COUNTERS = struct.Struct("<qq")
PAGE = 4096  # file systems allocate no smaller


def allocation(n_bytes: int) -> int:
    """What a file of ``n_bytes`` takes on a file system of 4 KiB pages."""
    return -(-n_bytes // PAGE) * PAGE


@contextmanager
def locked(path: Path, how: int) -> Iterator[int]:
    """Hold a flock on ``path`` (its own open file, so threads exclude each other too); BlockingIOError with LOCK_NB."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
        yield fd
    finally:
        os.close(fd)


class Quota:
    """The usage of one tier. Any thread, any process."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = root / "lock"
        self._usage = root / "usage"

    def used(self) -> int:
        with locked(self._usage, fcntl.LOCK_SH) as fd:
            return _read(fd)[0]

    def removals(self) -> int:
        """Changes whenever an object was removed; -1 when the counter is gone, or no file. Cheap: nothing is locked."""
        try:
            fd = os.open(self._usage, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return _read(fd)[1]
            finally:
                os.close(fd)
        except OSError:
            return -1

    def add(self, delta: int, *, removed: int = 0) -> None:
        with locked(self._usage, fcntl.LOCK_EX) as fd:
            used, removals = _read(fd)
            _write(fd, max(0, used + delta), removals + removed)

    @contextmanager
    def reserve(self, n_bytes: int) -> Iterator[bool]:
        """Yield whether there is room for a file of ``n_bytes``; when there is, write and publish it inside. An
        exception gives the bytes back."""
        n_bytes = allocation(n_bytes)
        with locked(self._lock, fcntl.LOCK_SH):
            granted = self._take(n_bytes)
            try:
                yield granted
            except BaseException:
                if granted:
                    self.add(-n_bytes)
                raise

    def recount(self, measure: Callable[[], int]) -> int | None:
        """Replace the counter by what ``measure`` finds while no one writes; None when writers are busy."""
        try:
            with locked(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                total = measure()
                with locked(self._usage, fcntl.LOCK_EX) as fd:
                    _write(fd, total, _read(fd)[1])
                return total
        except BlockingIOError:
            return None

    def _take(self, n_bytes: int) -> bool:
        with locked(self._usage, fcntl.LOCK_EX) as fd:
            used, removals = _read(fd)
            if used + n_bytes > self.limit_bytes:
                return False
            _write(fd, used + n_bytes, removals)
            return True


def _read(fd: int) -> tuple[int, int]:
    data = os.pread(fd, COUNTERS.size, 0)
    if len(data) != COUNTERS.size:
        return 0, 0
    used, removals = COUNTERS.unpack(data)
    return used, removals


def _write(fd: int, used: int, removals: int) -> None:
    os.pwrite(fd, COUNTERS.pack(used, removals), 0)
