"""Small files: what is none of ours is refused, and what is written is whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from barrel_inference.files import MAX_SMALL_BYTES, leave_note, read_small, write_atomically


def test_what_is_written_is_read_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for data in (b"first", b"second"):
        write_atomically(path, data)
        assert read_small(path) == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_is_none_of_ours_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_SMALL_BYTES + 1)
    for name in ("missing", "fifo", "folder", "link", "large"):
        with pytest.raises(OSError):
            read_small(tmp_path / name)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "taken", b"data")
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_refusing_keeps_no_descriptor(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    for _ in range(20):
        with pytest.raises(OSError):
            read_small(tmp_path)
    assert psutil.Process().num_fds() == before


def test_a_note_that_cannot_be_left_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave_note(tmp_path / "note", b"data")
    assert (tmp_path / "note").read_bytes() == b"data"
    assert not caplog.records
    (tmp_path / "taken").mkdir()
    leave_note(tmp_path / "taken", b"data")
    assert "taken could not be written" in caplog.text


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    (tmp_path / "file").symlink_to(other)
    write_atomically(tmp_path / "file", b"ours")
    assert (other.read_bytes(), read_small(tmp_path / "file")) == (b"theirs", b"ours")
