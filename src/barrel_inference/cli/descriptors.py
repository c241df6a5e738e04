"""Standard input, output and error as every program may expect them: open. Owns nothing."""

from __future__ import annotations

import os
import sys

_STREAMS = ("stdin", "stdout", "stderr")


def open_standard() -> None:
    """Put /dev/null where one of the three is closed, as a daemon's parent may leave them: or the next socket takes its
    number, which event loops refuse and which children would inherit as their input or output."""
    for fd, name in enumerate(_STREAMS):
        if not _is_open(fd):
            _open_null(fd)
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _open_null(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
    os.set_inheritable(fd, True)
