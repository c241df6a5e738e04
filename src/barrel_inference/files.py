"""Small files in directories that others may write to: read warily, written whole or not at all. Owns nothing."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

MAX_SMALL_BYTES = 16 << 20


def read_small(path: Path) -> bytes:
    """OSError when it is none of ours: whatever else lies there neither blocks (a FIFO) nor is followed (a link) nor
    fills the memory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SMALL_BYTES:
            raise OSError(errno.EINVAL, "not a small file", str(path))
        return file.read(MAX_SMALL_BYTES)


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
