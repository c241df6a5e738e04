"""Small files in directories that others may write to: read warily, written whole or not at all. Owns nothing."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_SMALL_BYTES = 16 << 20


def is_full(error: OSError) -> bool:
    """The file system has no space, or a user no more of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_small(path: Path) -> bytes:
    """OSError when it is none of ours: whatever else lies there neither blocks (a FIFO) nor is followed (a link) nor
    fills the memory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SMALL_BYTES:
            raise OSError(errno.EINVAL, "not a small file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(MAX_SMALL_BYTES)
    finally:
        os.close(fd)


def leave_note(path: Path, data: bytes) -> None:
    """Write it unless it is there. Nothing depends on it: what cannot be written is only told."""
    try:
        with suppress(OSError):
            if read_small(path) == data:
                return
        write_atomically(path, data)
    except OSError as error:
        logger.warning("%s could not be written: %s", path.name, error.strerror)


def write_atomically(path: Path, data: bytes) -> None:
    """For its owner's eyes only. OSError, and nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
