"""Stepping over strings: short ones by the batch, long ones and what crosses the window one by one."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from barrel_inference.errors import InvalidModelError
from barrel_inference.registry.gguf.cursor import BATCH, WINDOW_BYTES, Cursor

KINDS = {
    "short": [*range(14)],
    "all": [*range(80)],
    "seldom long": [*range(1, 12)] * 40 + [255, 256, 257, 70_000],
    "long": [64, 300, WINDOW_BYTES - 8, WINDOW_BYTES + 1],
}


def skip(path: Path, content: bytes, count: int) -> int:
    """Where the cursor is after so many strings of a file."""
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        cursor = Cursor(fd, len(content))
        cursor.skip_strings(count, "strings")
        return cursor.offset
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1, 30_000])
def test_the_position_after_strings(tmp_path: Path, kind: str, count: int) -> None:
    chance = random.Random(count)
    lengths = [chance.choice(KINDS[kind]) for _ in range(count if kind != "long" else min(count, 20))]
    # bytes that look like lengths, and zeros: a content must never be taken for the next string
    content = b"".join(struct.pack("<Q", n) + chance.choice([b"\0", b"\5", b"x"]) * n for n in lengths)
    rest = struct.pack("<Q", 5) + b"after"
    assert skip(tmp_path / "f", content + rest, len(lengths)) == len(content)


@pytest.mark.parametrize("missing", [1, 7, 8, 9, 12, 700])
def test_a_file_that_ends_too_early(tmp_path: Path, missing: int) -> None:
    content = (struct.pack("<Q", 5) + b"hello") * 1000
    with pytest.raises(InvalidModelError, match="the file"):
        skip(tmp_path / "f", content[:-missing], 1000)


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_length_that_is_a_lie(tmp_path: Path, length: int) -> None:
    content = (struct.pack("<Q", 5) + b"hello") * 500 + struct.pack("<Q", length) + bytes(13 * 600)
    with pytest.raises(InvalidModelError):
        skip(tmp_path / "f", content, 1000)
