"""Folders that may not be written to, not by root either, and file systems that are soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """By its mode; for root, who may write anywhere, by a mount over itself, and where that is not allowed the test is
    skipped."""
    if os.geteuid():
        path.chmod(0o500)
        yield
        path.chmod(0o700)
        return
    _mount("--bind", str(path), str(path))
    try:
        _mount("-o", "remount,bind,ro", str(path))
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own, where the tests may mount one."""
    path.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(file: Path) -> None:
    """All that is left of its file system."""
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
