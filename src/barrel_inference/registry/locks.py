"""Locks between processes that share a models root, all on ``flock``: the kernel drops them when a process dies,
however it dies, so nothing ever has to be cleaned up by hand.

    <root>/.lock            held for milliseconds around every change of what refers to what, and waited for, so it is
                            taken on no event loop
    <root>/tmp/*.lease      held as long as a pull, a create or a loaded model needs blobs no manifest names yet

A blob may be relied on once its digest stands in a lease (written under ``.lock``) or in a manifest; gc holds ``.lock``
and spares both. Each Lease owns its file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from barrel_inference.errors import LockedError, ReadOnlyError, RegistryError

if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _lock(fd: int) -> None:
        os.lseek(fd, 1 << 30, os.SEEK_SET)  # beyond the content, which others read
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


WAIT_S = 60.0  # nobody has a reason to hold a lock so long
MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.05
OPEN_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextlib.contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold ``path``'s lock, waiting for it; ``LockedError`` when it does not come. For short sections only: others of
    the same machine wait meanwhile."""
    fd = open_lock(path)
    try:
        _wait_for_lock(fd, path, wait_s)
        yield
    finally:
        os.close(fd)


def _wait_for_lock(fd: int, path: Path, wait_s: float) -> None:
    """By asking again: ``flock`` itself waits for ever."""
    until, pause_s = time.monotonic() + wait_s, MIN_PAUSE_S
    while not _is_locked(fd):
        if time.monotonic() >= until:
            raise LockedError(
                f"{path} has been held by somebody else for {wait_s:g} s; try again, or end the process that holds it",
                path=str(path),
                retry_after_s=10,
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _is_locked(fd: int) -> bool:
    """Whether it is now."""
    try:
        _lock(fd)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def try_lock(path: Path) -> int | None:
    """An open descriptor that holds ``path``'s lock until it is closed, or None while somebody else has it."""
    fd = open_lock(path)
    mine = False
    try:
        mine = _is_locked(fd)
    finally:
        if not mine:
            os.close(fd)
    return fd if mine else None


def open_lock(path: Path) -> int:
    try:
        return os.open(path, OPEN_FLAGS, 0o644)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyError(f"the models directory is not writable: {path.parent}") from None
        raise RegistryError(f"cannot open {path.name}: {error.strerror}") from None


class Lease:
    """Hex digests of blobs that must survive a gc. Add under the root's lock; released by ``close`` or death."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"{uuid.uuid4().hex}.lease"
        fd = try_lock(self._path)
        if fd is None:  # somebody guessed a random name
            raise RegistryError(f"{self._path.name} is taken")
        self._fd = fd

    @classmethod
    def of(cls, directory: Path, names: Iterable[str]) -> Lease:
        """All of them, or no lease at all."""
        lease = cls(directory)
        try:
            lease.add(names)
        except BaseException:
            lease.close()
            raise
        return lease

    def add(self, hexes: Iterable[str]) -> None:
        content = "".join(f"{item}\n" for item in hexes).encode()
        if os.write(self._fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # without its lock it counts no more, and the next gc removes it
                self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def leased(directory: Path) -> set[str]:
    """All names in leases whose owners live; leases of the dead are removed. Call under the root's lock."""
    names: set[str] = set()
    for path in directory.glob("*.lease"):
        if not path.is_file():
            continue  # not one of ours
        fd = try_lock(path)
        if fd is None:
            with contextlib.suppress(FileNotFoundError):  # it was given up this moment
                names.update(path.read_text("ascii", "replace").split())
        else:
            path.unlink(missing_ok=True)
            os.close(fd)
    return names
